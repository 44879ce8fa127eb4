#!/usr/bin/env bash
# What the first stage of the Dockerfile runs, apart from it so that a test runs the same without a container engine.
#
#   scripts/image.sh libraries PREFIX   an environment in PREFIX with the locked libraries, each file by its hash
#   scripts/image.sh gateway PREFIX     the gateway's own wheel in it, built here with a locked and hashed builder
#
# PREFIX has no pip and nothing that builds. PYTHON=... is the interpreter that it belongs to; it needs pip and venv.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
prefix=$2

# Into the environment $1, which needs no pip of its own.
install() {
    local target=$1
    shift
    "$python" -m pip --python "$target/bin/python" install --quiet --disable-pip-version-check --no-input \
        --no-cache-dir --only-binary :all: "$@"
}

libraries() {
    "$python" -m venv --without-pip "$prefix"
    install "$prefix" --require-hashes -r requirements/runtime.txt
}

gateway() {
    local scratch
    scratch=$(mktemp -d)
    trap "rm -rf '$scratch'" EXIT
    "$python" -m venv --without-pip "$scratch/builder"
    install "$scratch/builder" --require-hashes -r requirements/build.txt
    "$scratch/builder/bin/python" -m hatchling build --target wheel --directory "$scratch/wheel"
    # The libraries are there, so nothing is fetched here that has no hash.
    install "$prefix" --no-deps --no-index "$scratch"/wheel/*.whl
}

"$1"
