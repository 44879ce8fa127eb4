# What the scripts share that see to one part each of what the tests need. Sourced from the checkout, never run.
part=$(basename "$0" .sh)

say() { printf '%s: %s\n' "$part" "$*"; }

# Of a part: where it is, what it is made from, and how.
fingerprint() { { pwd; cat "$@" "scripts/$part.sh"; } | sha256sum; }
current() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

# Of two runs at once the second waits, and finds it done.
alone() {
    if command -v flock >/dev/null; then
        exec 9>.install.lock
        flock 9
    fi
}

# Debian's packages, where this is root on Debian; else, and where it fails, nothing: the caller looks what is there.
debian() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 0
    say "installing $* with apt-get"
    # Debian starts services where there is an init to ask; here nothing may listen but what a test starts.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@"; } >/dev/null || true
}

# The packages that a folder's lock names, hashed; false where they cannot be had.
node_packages() {
    local folder=$1 print
    print=$(fingerprint "$folder/package-lock.json")
    current "$folder/node_modules/.installed" "$print" && return
    say "installing the packages of $folder"
    npm --prefix "$folder" ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null || return 1
    printf '%s\n' "$print" >"$folder/node_modules/.installed"
}
