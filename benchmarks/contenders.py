"""Who runs: the upstream itself, nginx, our bare pass-through, the gateway.

Each is started once, pinned, and must answer before it counts. A contender that this machine cannot have, or that does
not come up, is reported with its reason and left out; it never breaks the run of the others.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks import nginx
from benchmarks.build import Unavailable
from benchmarks.processes import Child, Cores, rss_bytes, start, tree

HERE = Path(__file__).resolve().parent
CHAT = "/v1/chat/completions"
START_SECONDS = 30.0


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A contender that answers: where, which processes, how long its start took and what it weighs before any load."""

    name: str
    port: int
    pid: int
    startup_s: float
    idle_rss: int


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """All that run, in the order of a round, and why the others do not."""

    running: tuple[Running, ...]
    missing: tuple[tuple[str, str], ...]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender needs to know to start."""

    folder: Path
    upstream: int
    port: int


# The defaults, but for the streams that one key may hold: all of the generator's come from one client.
CONFIG = """\
server: {{host: 127.0.0.1, port: {port}, limits: {{streams: 2000, streams_per_key: 2000}}}}
upstreams:
  main: {{base_url: "http://127.0.0.1:{upstream}/v1"}}
models:
  "*": {{upstream: main}}
store: {{url: "sqlite:///{folder}/weirgate.db"}}
"""


def _weirgate(place: Place) -> tuple[str, ...]:
    program = Path(sys.executable).parent / "weirgate"
    if not program.exists():
        raise Unavailable(f"there is no {program.name} beside this Python: run `make install`")
    config = place.folder / "weirgate.yaml"
    config.write_text(CONFIG.format(port=place.port, upstream=place.upstream, folder=place.folder))
    return (str(program), "serve", "--config", str(config))


def _passthrough(place: Place) -> tuple[str, ...]:
    upstream = f"http://127.0.0.1:{place.upstream}"
    return (sys.executable, str(HERE / "passthrough.py"), "--port", str(place.port), "--upstream", upstream)


def _nginx(place: Place) -> tuple[str, ...]:
    return nginx.command(nginx.find_nginx(), folder=place.folder, port=place.port, upstream=place.upstream)


# Name -> the command that serves it. A round visits them in this order, after `direct`.
COMMANDS: dict[str, Callable[[Place], tuple[str, ...]]] = {
    "nginx": _nginx,
    "pass-through": _passthrough,
    "weirgate": _weirgate,
}
NAMES = ("direct", *COMMANDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether a small chat call comes back with 200; anything else is 'not yet'."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "Are you there?"}], "model": "bench"})
        headers = {"Content-Type": "application/json", "Authorization": "Bearer benchmark"}
        connection.request("POST", CHAT, body, headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _await_answer(name: str, child: Child, port: int, began: float) -> Running:
    while time.monotonic() - began < START_SECONDS:
        if child.ends_within(0.005):
            raise Unavailable(f"{name} ended while starting; its last words:\n{child.last_words()}")
        if _answers(port):
            took = time.monotonic() - began
            return Running(name=name, port=port, pid=child.pid, startup_s=took, idle_rss=rss_bytes(tree(child.pid)))
    raise Unavailable(f"{name} did not answer within {START_SECONDS:.0f} s; its last words:\n{child.last_words()}")


def _start_upstream(program: Path, stack: ExitStack, folder: Path, cores: Cores) -> Running:
    log = folder / "upstream.log"
    began = time.monotonic()
    child = start((str(program), "0"), core=cores.rest, folder=folder, log=log)
    stack.callback(child.stop)
    while not log.read_text().endswith("\n"):
        if child.ends_within(0.002) or time.monotonic() - began > 5:
            raise Unavailable(f"the fake upstream did not start: {child.last_words()}")
    return _await_answer("direct", child, int(log.read_text().split()[1]), began)


def start_all(names: tuple[str, ...], upstream: Path, stack: ExitStack, folder: Path, cores: Cores) -> Field:
    """Start the upstream and each named contender; closing `stack` stops them all. Raises Unavailable only where the
    upstream itself does not start."""
    direct = _start_upstream(upstream, stack, folder, cores)
    running = [direct] if "direct" in names else []
    missing: list[tuple[str, str]] = []
    for name, command in COMMANDS.items():
        if name not in names:
            continue
        place = Place(folder=folder / name, upstream=direct.port, port=free_port())
        place.folder.mkdir()
        try:
            line = command(place)
            began = time.monotonic()
            child = start(line, core=cores.tested, folder=place.folder, log=folder / f"{name}.log")
            stack.callback(child.stop)
            running.append(_await_answer(name, child, place.port, began))
        except (Unavailable, OSError) as problem:
            missing.append((name, str(problem)))
    return Field(running=tuple(running), missing=tuple(missing))
