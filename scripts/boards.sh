#!/usr/bin/env bash
# Makes what tests/observability drives: Debian's prometheus with promtool, and Grafana's own types of a dashboard
# (tests/observability/node/node_modules), locked and hashed. Idempotent. What is not to be had here is left out, and
# said; the tests count that aloud, and in CI it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

prometheus_and_promtool() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && return
    debian prometheus
    command -v promtool >/dev/null || say "no prometheus here: left out (Debian: apt-get install prometheus)"
}

dashboard_types() {
    if ! command -v npm >/dev/null; then
        say "no npm here: dashboards are not held against Grafana's types"
        return
    fi
    node_packages tests/observability/node || say "npm failed: dashboards are not held against Grafana's types"
}

alone
prometheus_and_promtool
dashboard_types
