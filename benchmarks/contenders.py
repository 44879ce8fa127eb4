"""Who runs: the upstream itself, nginx, our bare pass-through, the gateway; the peers where they are asked for.

Each is started once, pinned, and must answer before it counts. A contender that this machine cannot have, or that does
not come up, is reported with its reason and left out; it never breaks the run of the others.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks import nginx, peers
from benchmarks.bodies import TIGHT
from benchmarks.build import Unavailable
from benchmarks.launch import Launch, Place, Running, await_answer, free_port, launched
from benchmarks.processes import Cores, start

HERE = Path(__file__).resolve().parent


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """All that run, in the order of a round, and why the others do not: a line, then the last words of their output."""

    running: tuple[Running, ...]
    missing: tuple[tuple[str, str], ...]

    def named(self, name: str) -> Running | None:
        return next((running for running in self.running if running.name == name), None)

    def why_missing(self, name: str) -> str:
        """In one line; '' for one that runs or was not asked."""
        return dict(self.missing).get(name, "").partition("\n")[0]


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where contenders are started: folders below `folder`, in front of the upstream on `upstream`."""

    folder: Path
    upstream: int
    models: tuple[str, ...]
    cores: Cores

    def place(self, name: str) -> Place:
        """A new, empty folder and a free port."""
        folder = self.folder / name
        folder.mkdir()
        return Place(folder=folder, upstream=self.upstream, port=free_port(), models=self.models)


# The defaults, but for the streams that one key may hold: all of the generator's come from one client. The shipped
# policies hold for every model but TIGHT.
CONFIG = """\
server: {{host: 127.0.0.1, port: {port}, limits: {{streams: 4000, streams_per_key: 4000}}}}
upstreams:
  main: {{base_url: "http://127.0.0.1:{upstream}/v1"}}
models:
  "*": {{upstream: main}}
policies: policies
store: {{url: "sqlite:///{folder}/weirgate.db"}}
"""

# A 2 MB history is about 500,000 of the upstream's tokens. Notes by the built-in: the upstream has none to tell.
TIGHT_POLICY = f"match: {TIGHT}\nwindow: 200000\nsummary: {{model: false}}\n"


def _weirgate(place: Place) -> Launch:
    program = Path(sys.executable).parent / "weirgate"
    if not program.exists():
        raise Unavailable(f"there is no {program.name} beside this Python: run `make install`")
    shutil.copytree(HERE.parent / "policies", place.folder / "policies")
    (place.folder / "policies" / "tight.yaml").write_text(TIGHT_POLICY)
    config = place.folder / "weirgate.yaml"
    config.write_text(CONFIG.format(port=place.port, upstream=place.upstream, folder=place.folder))
    return Launch(line=(str(program), "serve", "--config", str(config)))


def _passthrough(place: Place) -> Launch:
    upstream = f"http://127.0.0.1:{place.upstream}"
    script = str(HERE / "passthrough.py")
    return Launch(line=(sys.executable, script, "--port", str(place.port), "--upstream", upstream))


def _nginx(place: Place) -> Launch:
    line = nginx.command(nginx.find_nginx(), folder=place.folder, port=place.port, upstream=place.upstream)
    return Launch(line=line)


# Name -> how it is started. A round visits them in this order, after `direct` and before the peers.
OWN: Mapping[str, Callable[[Place], Launch]] = MappingProxyType(
    {"nginx": _nginx, "pass-through": _passthrough, "weirgate": _weirgate}
)
OWN_NAMES = ("direct", *OWN)
NAMES = (*OWN_NAMES, *peers.NAMES)


def launch_of(name: str, place: Place) -> Launch:
    """How it is started there. Installs a peer that is not there yet. Raises Unavailable."""
    return OWN[name](place) if name in OWN else peers.launch(name, place)


def start_upstream(program: Path, stack: ExitStack, folder: Path, cores: Cores) -> Running:
    """Raises Unavailable."""
    log = folder / "upstream.log"
    began = time.monotonic()
    child = start((str(program), "0"), core=cores.rest, folder=folder, log=log)
    stack.callback(child.stop)
    while not log.read_text().endswith("\n"):
        if child.ends_within(0.002) or time.monotonic() - began > 5:
            raise Unavailable(f"the fake upstream did not start: {child.last_words()}")
    return await_answer("direct", child, int(log.read_text().split()[1]), began, Launch(line=(str(program),)))


def start_all(
    names: tuple[str, ...], direct: Running, stack: ExitStack, site: Site, say: Callable[[str], None]
) -> Field:
    """Start each named contender; closing `stack` stops them all. Installing and starting a peer takes a while: `say`
    is told."""
    running = [direct] if "direct" in names else []
    missing: list[tuple[str, str]] = []
    for name in names:
        if name == "direct":
            continue
        if name in peers.NAMES:
            say(f"starting {name}" if peers.installed(name) else f"installing {name}, once; then starting it")
        try:
            fresh = name in peers.NAMES and not peers.installed(name)
            place = site.place(name)
            launch = launch_of(name, place)
            if fresh:  # its first start after the installation reads its files from the disk: not the one that counts
                with ExitStack() as once:
                    launched(name, launch, place, once, site.cores)
            running.append(launched(name, launch, place, stack, site.cores))
        except (Unavailable, OSError) as problem:
            missing.append((name, str(problem)))
    return Field(running=tuple(running), missing=tuple(missing))
