"""Starting one contender and waiting until it answers: what it needs to know, what it says of itself, how it comes up.

Who there is stands in contenders.py and peers.py. A contender counts from its first right answer, never before.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.build import Unavailable
from benchmarks.processes import Child, Cores, rss_bytes, start, tree

CHAT = "/v1/chat/completions"
HELLO = json.dumps({"messages": [{"role": "user", "content": "Are you there?"}], "model": "bench"}).encode()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender needs to know to start: its own empty folder, two ports, and every model it is asked for."""

    folder: Path
    upstream: int
    port: int
    models: tuple[str, ...]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The command that serves it. `environment`: None inherits ours. `headers` go with every request, as 'name: value'.
    `patience`: seconds until its first answer."""

    line: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    headers: tuple[str, ...] = ()
    patience: float = 30.0


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A contender that answers: where, which processes, how long its start took and what it weighs before any load."""

    name: str
    port: int
    pid: int
    startup_s: float
    idle_rss: int
    headers: tuple[str, ...] = ()

    @property
    def rss(self) -> int:
        """Resident bytes of all its processes, now."""
        return rss_bytes(tree(self.pid))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Answer(NamedTuple):
    """Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def answer(port: int, body: bytes, headers: tuple[str, ...] = (), timeout: float = 5.0) -> Answer:
    """Of one call. Raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        sent = {"Content-Type": "application/json", "Authorization": "Bearer benchmark"}
        sent |= dict(line.split(": ", 1) for line in headers)
        connection.request("POST", CHAT, body, sent)
        came = connection.getresponse()
        content = came.read()
        return Answer(came.status, {name.lower(): value for name, value in came.getheaders()}, content)
    finally:
        connection.close()


def asked(port: int, body: bytes, headers: tuple[str, ...] = (), timeout: float = 5.0) -> tuple[int, Mapping[str, str]]:
    """Status and headers of one call, as `answer`."""
    return answer(port, body, headers, timeout)[:2]


def _answers(port: int, headers: tuple[str, ...]) -> bool:
    """Whether a small chat call comes back with 200; anything else is 'not yet'."""
    try:
        return asked(port, HELLO, headers)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def await_answer(name: str, child: Child, port: int, began: float, launch: Launch) -> Running:
    """Raises Unavailable where it ends or stays silent."""
    while time.monotonic() - began < launch.patience:
        if child.ends_within(0.005):
            raise Unavailable(f"ended while starting\n{child.last_words()}")
        if _answers(port, launch.headers):
            took = time.monotonic() - began
            weight = rss_bytes(tree(child.pid))
            return Running(name=name, port=port, pid=child.pid, startup_s=took, idle_rss=weight, headers=launch.headers)
    raise Unavailable(f"did not answer within {launch.patience:.0f} s\n{child.last_words()}")


def launched(name: str, launch: Launch, place: Place, stack: ExitStack, cores: Cores) -> Running:
    """Start it; closing `stack` stops it. Raises Unavailable or OSError."""
    began = time.monotonic()
    log = place.folder / "output.log"
    child = start(launch.line, core=cores.tested, folder=place.folder, log=log, environment=launch.environment)
    stack.callback(child.stop)
    return await_answer(name, child, place.port, began, launch)
