#!/usr/bin/env bash
# Makes what tests/clients drives: .venv-clients (LangChain, llm) and tests/clients/node/node_modules (openai for Node,
# the Vercel AI SDK), locked and hashed. Idempotent: a second run compares two fingerprints and ends. Without Node its
# part is left out, and said; the tests count that aloud, and in CI it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

python_clients() {
    local lock=requirements/clients.txt stamp=.venv-clients/.installed print
    print=$(fingerprint "$lock")
    current "$stamp" "$print" && return
    say "making .venv-clients, about 20 seconds"
    .venv/bin/python -m venv --clear .venv-clients
    .venv-clients/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes \
        --only-binary :all: -r "$lock"
    printf '%s\n' "$print" >"$stamp"
}

node_clients() {
    command -v npm >/dev/null || debian nodejs npm
    if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
        say "no node and npm here: the JavaScript clients are left out (Debian: apt-get install nodejs npm)"
        return
    fi
    node_packages tests/clients/node || say "npm failed: the JavaScript clients are left out"
}

alone
python_clients
node_clients
