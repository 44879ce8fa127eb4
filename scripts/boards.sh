#!/usr/bin/env bash
# Makes what tests/observability drives: Debian's prometheus with promtool, and Grafana's own types of a dashboard
# (tests/observability/node/node_modules), locked and hashed. Idempotent. What is not to be had here is left out, and
# said; the tests count that aloud, and in CI it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'boards: %s\n' "$*"; }
fingerprint() { { pwd; cat "$@"; } | sha256sum; }

prometheus_and_promtool() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        say "installing prometheus with apt-get"
        # Debian starts it as a service where there is an init to ask; here nothing may listen but what a test starts.
        export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends prometheus; } >/dev/null || true
    fi
    command -v promtool >/dev/null || say "no prometheus here: left out (Debian: apt-get install prometheus)"
}

dashboard_types() {
    local folder=tests/observability/node print
    if ! command -v npm >/dev/null; then
        say "no npm here: dashboards are not held against Grafana's types"
        return
    fi
    print=$(fingerprint "$folder/package-lock.json" scripts/boards.sh)
    [ -f "$folder/node_modules/.installed" ] && [ "$(cat "$folder/node_modules/.installed")" = "$print" ] && return
    if ! npm --prefix "$folder" ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null; then
        say "npm failed: dashboards are not held against Grafana's types"
        return
    fi
    printf '%s\n' "$print" >"$folder/node_modules/.installed"
}

main() {
    if command -v flock >/dev/null; then # two runs at once: the second waits and finds it done
        exec 9>.install.lock
        flock 9
    fi
    prometheus_and_promtool
    dashboard_types
}

main
