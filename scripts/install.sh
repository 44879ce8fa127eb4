#!/usr/bin/env bash
# Makes .venv with everything that development and tests need, locked and hashed, and .venv/bin/weirgate.
#
# Idempotent: a second run compares one fingerprint and ends. A .venv that works is never removed, and packages in it
# that fit stay as they are; one whose checkout has moved does not work and is made again. PYTHON=... chooses the
# interpreter for a new one.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

lock=requirements/dev.txt
stamp=.venv/.weirgate-installed

fail() { say "$*" >&2; exit 1; }

# An editable install names the checkout: a moved one has another fingerprint, and is made again.
installed() { [ -x .venv/bin/weirgate ] && current "$stamp" "$print"; }

python_that_fits() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian packs venv and ensurepip apart from python3.
add_debian_venv() {
    command -v apt-get >/dev/null || fail "this Python has no venv module; install it and run again"
    [ "$(id -u)" = 0 ] || fail "this Python has no venv module: run 'sudo apt-get install python3-venv' and run again"
    debian python3 python3-venv
}

make_venv() {
    local python
    if ! python=$(python_that_fits) || ! can_make_venv "$python"; then
        add_debian_venv
        python=$(python_that_fits) || fail "Python 3.11 or later is needed; none was found"
        can_make_venv "$python" || fail "$python still has no venv module; set PYTHON to one that has"
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv "$@" .venv
}

# The scripts in .venv/bin name their interpreter by its path: after the checkout has moved, none of them starts.
moved() { [ -f .venv/bin/pip ] && [ ! -x "$(sed -n '1s/^#!\(\/.*python[^ ]*\).*/\1/p' .venv/bin/pip)" ]; }

# pip names each package as it comes to it; one line for every tenth says that it lives, and how far it is.
progress() {
    awk -v all="$1" '/^(Collecting|Requirement already satisfied)/ { n++; if (n % 10 == 0) { printf "install: %d of about %d packages\n", n, all; fflush() } }
         /^Installing collected/ { print "install: unpacking"; fflush() }
         /^(ERROR|WARNING: Hash)/ { print > "/dev/stderr" }'
}

# pip compiles the libraries; nobody compiles an editable checkout, and where PYTHONDONTWRITEBYTECODE is set, as in many
# images, each start would do it anew. What is current costs nothing here; a checkout that cannot be written stays as is.
compile() { .venv/bin/python -m compileall -q proxy || true; }

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

main() {
    local print count
    print=$(fingerprint "$lock" pyproject.toml)
    if installed; then
        compile
        return
    fi
    alone
    installed && return
    count=$(grep -c '==' "$lock")
    if moved; then
        make_venv --clear
    elif ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        make_venv
    fi
    say "$count locked packages, about a minute"
    pip install --require-hashes --only-binary :all: --progress-bar off -r "$lock" | progress "$count"
    # The build backend came with the lock, so nothing is fetched here that has no hash.
    pip install --quiet --no-deps --no-build-isolation --editable .
    compile
    printf '%s\n' "$print" >"$stamp"
    say "ready: .venv/bin/weirgate"
}

main
