"""A PostgreSQL of the tests' own: Debian's binaries, in a temporary folder, on a free port, stopped by its own pid.

    with cluster() as server: server.url("name"); server.create("name", like="template"); server.restart()

Nothing is synced to disk: a kill of the machine would lose it, a kill of a process does not. Root may not run a server,
so as root it is run as `nobody`. Where there are no binaries the tests that need them are skipped, aloud; in CI that is
a failure (`absent`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import IN_CI

USER = "weirgate"
_AS_ROOT = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
_STARTS = 60.0
_QUICK = ("fsync=off", "synchronous_commit=on", "full_page_writes=off", "max_connections=200", "shared_buffers=32MB")


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`: the newest of Debian's, else that of `pg_config` on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    config = shutil.which("pg_config")
    if config is None:
        return None
    folder = Path(subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    return folder if (folder / "postgres").is_file() else None


def absent() -> str | None:
    """Why there can be no server here; None where there can. In CI that is an error."""
    if binaries() is not None:
        return None
    reason = "no PostgreSQL: `apt-get install postgresql`"
    if IN_CI:
        raise RuntimeError(reason)
    return reason


def unprivileged(command: Sequence[str]) -> list[str]:
    return [*(_AS_ROOT if os.getuid() == 0 else ()), *command]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """One server. `folder` holds its data and its socket."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder = folder
        self.bin = bin
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        command = [str(self.bin / "initdb"), "-D", f"{self.folder}/data", "-A", "trust", "-U", USER, "--no-sync"]
        self._run([*command, "-E", "UTF8", "--locale=C.UTF-8"])

    def start(self) -> None:
        where = (f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}")
        command = [str(self.bin / "postgres"), "-D", f"{self.folder}/data"]
        for setting in (*where, *_QUICK):
            command += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                unprivileged(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        # Should the tests be killed, somebody must end the server: who reads from a pipe that ends with them.
        ending = f"read _; kill -INT {self._server.pid}; sleep 1; rm -rf {self.folder}"
        self._guard = subprocess.Popen(["sh", "-c", ending], stdin=subprocess.PIPE, start_new_session=True)
        self._until_ready()

    def _until_ready(self) -> None:
        ends = time.monotonic() + _STARTS
        asked = [str(self.bin / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        while subprocess.run(asked, check=False).returncode:
            assert self._server is not None
            assert self._server.poll() is None and time.monotonic() < ends, (self.folder / "log").read_text()[-2000:]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends connections and shuts down; SIGQUIT crashes, as `pg_ctl -m immediate` does."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(_STARTS)
            self._server = None

    def create(self, database: str, like: str = "template0") -> str:
        """A database of its own, as a copy of another that nobody uses; its address."""
        self.say(f'CREATE DATABASE "{database}" TEMPLATE "{like}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        self.say(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def say(self, sql: str, database: str = "postgres") -> str:
        """What psql answers, unadorned."""
        where = ["-h", str(self.folder), "-p", str(self.port), "-U", USER, "-d", database]
        return self._run([str(self.bin / "psql"), "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", *where, "-c", sql])

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(unprivileged(command), capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A running server. Its folder is short: the name of a socket may not be long."""
    bin = binaries()
    assert bin is not None, "ask `absent` first"
    folder = Path(tempfile.mkdtemp(prefix="wg-pg-"))
    if os.getuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    server = Cluster(folder, bin)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
