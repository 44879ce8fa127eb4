#!/usr/bin/env bash
# Makes what tests/clients drives: .venv-clients (LangChain, llm) and tests/clients/node/node_modules (openai for Node,
# the Vercel AI SDK), locked and hashed. Idempotent: a second run compares two fingerprints and ends. Without Node its
# part is left out, and said; the tests count that aloud, and in CI it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'clients: %s\n' "$*"; }
fingerprint() { { pwd; cat "$@"; } | sha256sum; }
current() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

python_clients() {
    local lock=requirements/clients.txt stamp=.venv-clients/.installed print
    print=$(fingerprint "$lock" scripts/clients.sh)
    current "$stamp" "$print" && return
    say "making .venv-clients, about 20 seconds"
    .venv/bin/python -m venv --clear .venv-clients
    .venv-clients/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes \
        --only-binary :all: -r "$lock"
    printf '%s\n' "$print" >"$stamp"
}

node_clients() {
    local folder=tests/clients/node print
    if ! command -v npm >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        say "installing nodejs and npm with apt-get"
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends nodejs npm; } >/dev/null || true
    fi
    if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
        say "no node and npm here: the JavaScript clients are left out (Debian: apt-get install nodejs npm)"
        return
    fi
    print=$(fingerprint "$folder/package-lock.json" scripts/clients.sh)
    current "$folder/node_modules/.installed" "$print" && return
    say "installing the JavaScript clients"
    if ! npm --prefix "$folder" ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null; then
        say "npm failed: the JavaScript clients are left out"
        return
    fi
    printf '%s\n' "$print" >"$folder/node_modules/.installed"
}

main() {
    if command -v flock >/dev/null; then # two runs at once: the second waits and finds it done
        exec 9>.install.lock
        flock 9
    fi
    python_clients
    node_clients
}

main
