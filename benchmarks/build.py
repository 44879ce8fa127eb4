"""Compiles the C tools (upstream.c, load.c) into a cache folder outside the work tree.

They are compiled where they run, so nothing binary is kept in git; a binary's name holds the digest of its source, so
an old one is never used. On a bare Debian the compiler is installed when we are root. As a program: prints the paths.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
FLAGS = ("-O2", "-Wall", "-std=gnu11")


class Unavailable(Exception):
    """A part that this machine cannot have; the text says which and what to do."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    upstream: Path
    load: Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/weirgate-bench`, else under the home folder, else (not writable) under the temporary folder."""
    root = os.environ.get("XDG_CACHE_HOME")
    own = (Path(root) if root else Path.home() / ".cache") / "weirgate-bench"
    for folder in (own, Path(tempfile.gettempdir()) / f"weirgate-bench-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):  # what we run must be what we built
            return folder
    raise Unavailable("no folder to keep compiled tools in: set XDG_CACHE_HOME to a writable one")


def apt(*arguments: str, cwd: Path | None = None, refresh: bool = True) -> str | None:
    """Run apt-get; if it fails and we are root, the package lists are fetched once. None on success, else why not."""
    if not shutil.which("apt-get"):
        return "there is no apt-get here"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ("apt-get", "-q", "-y", *arguments), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode == 0:
        return None
    if refresh and os.getuid() == 0:
        subprocess.run(("apt-get", "-q", "update"), env=environment, capture_output=True, timeout=300)
        return apt(*arguments, cwd=cwd, refresh=False)
    return (done.stderr.strip() or done.stdout.strip() or "apt-get failed").splitlines()[-1]


def compiler() -> str:
    """The C compiler's path. Raises Unavailable."""
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    for attempt in (1, 2):
        for name in names:
            found = shutil.which(name) if name else None
            if found:
                return found
        if attempt == 1 and os.getuid() == 0:
            print("no C compiler: installing gcc", file=sys.stderr)
            problem = apt("install", "--no-install-recommends", "gcc", "libc6-dev")
            if problem:
                raise Unavailable(f"no C compiler, and installing gcc failed: {problem}")
    raise Unavailable("no C compiler: install one (Debian: apt-get install gcc libc6-dev)")


def compiled(name: str) -> Path:
    """The binary of `name`.c, compiled if this source has not been yet. Raises Unavailable."""
    source = HERE / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:12]
    binary = cache_folder() / f"{name}-{digest}"
    if binary.exists():
        return binary
    partial = binary.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        (compiler(), *FLAGS, "-o", str(partial), str(source)), capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        raise Unavailable(f"{source.name} does not compile: {done.stderr.strip()}")
    partial.replace(binary)
    return binary


def tools() -> Tools:
    """Both binaries. Raises Unavailable."""
    return Tools(upstream=compiled("upstream"), load=compiled("load"))


if __name__ == "__main__":
    try:
        built = tools()
    except Unavailable as problem:
        sys.exit(str(problem))
    print(built.upstream)
    print(built.load)
