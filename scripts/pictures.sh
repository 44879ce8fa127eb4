#!/usr/bin/env bash
# Makes the pictures of docs/observability.md: plays a rehearsal (two gateways, two scripted upstreams, a Prometheus),
# and draws what each panel of grafana/ shows of it. SECONDS_PLAYED=180 says for how long.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.venv-pictures
lock=requirements/pictures.txt
observed=build/observed.json

say() { printf 'pictures: %s\n' "$*"; }
fingerprint() { { pwd; cat "$lock" scripts/pictures.sh; } | sha256sum; }

if [ ! -f "$folder/.installed" ] || [ "$(cat "$folder/.installed")" != "$(fingerprint)" ]; then
    say "making $folder"
    .venv/bin/python -m venv --clear "$folder"
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-input --require-hashes \
        --only-binary :all: -r "$lock"
    fingerprint >"$folder/.installed"
fi
.venv/bin/python -m grafana.observed "$observed" --seconds "${SECONDS_PLAYED:-180}"
"$folder/bin/python" grafana/pictures.py "$observed" docs/observability
say "drawn: docs/observability/*.png"
