"""Instructions per call of a whole gateway process, counted by valgrind: what no noise of a machine can hide.

User code only, one call in flight, without what an idle gateway does in the same time (its clocks tick by the second,
and under valgrind a second holds few calls). Threads take turns only where one waits, or a slow machine would count
more switches than a fast one; hashes have a fixed seed.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.build import Unavailable
from benchmarks.comparing import proven
from benchmarks.gateways import Gateways
from benchmarks.launch import Launch, Running, launched
from benchmarks.measure import Generator
from benchmarks.pairs import Pair, Side

T = TypeVar("T")

BLOCKS = 5
BLOCK_SECONDS, IDLE_SECONDS, WARM_SECONDS = 3.0, 3.0, 1.0
START_SECONDS = 400.0
COUNTS = "callgrind.out"
UNSWITCHED = """\
import runpy, sys
sys.setswitchinterval(1000.0)
runpy.run_module("proxy", run_name="__main__", alter_sys=True)
"""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions per right answer in each block of calls, ascending."""

    blocks: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)

    @property
    def spread(self) -> float:
        """Of the middle blocks, as a share of the median: without the least and the most."""
        return (self.blocks[-2] - self.blocks[1]) / self.median if len(self.blocks) > 3 else 0.0


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What a pair's two calls take; `why` there is nothing."""

    pair: Pair
    mine: Count | None = None
    other: Count | None = None
    why: str = ""

    @property
    def ratio(self) -> float:
        return self.mine.median / self.other.median if self.mine and self.other else 0.0

    @property
    def doubt(self) -> float:
        """How far the ratio may be off: half the spread of both."""
        return self.ratio * (self.mine.spread + self.other.spread) / 2 if self.mine and self.other else 0.0

    @property
    def word(self) -> str:
        """gate, missed, or what keeps it from being told."""
        if not self.ratio:
            return f"not measured: {self.why}"
        if abs(self.ratio - self.pair.gate) <= self.doubt:
            return "hidden by noise"
        return "gate" if self.ratio <= self.pair.gate else "missed"


def countable(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """One of those that differ only in how many calls are in flight."""
    return tuple({(pair.mine, pair.other): pair for pair in reversed(pairs)}.values())[::-1]


def _monitor(pid: int, *command: str) -> None:
    """Tells the valgrind that runs the process. Raises Unavailable."""
    line = ("vgdb", f"--pid={pid}", *command)
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Unavailable(f"vgdb: {(done.stderr or done.stdout).strip()[-200:]}")


_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def total(dump: str) -> int:
    """Of a callgrind dump. Raises Unavailable where it has none."""
    found = _TOTALS.search(dump)
    if found is None:
        raise Unavailable("callgrind wrote no total")
    return int(found[1])


class Counter:
    """Of one process under valgrind."""

    def __init__(self, running: Running, folder: Path) -> None:
        self._running = running
        self._folder = folder
        self._idle = 0.0
        _monitor(running.pid, "instrumentation", "on")
        began = time.monotonic()
        used, _ = self._while(lambda: threading.Event().wait(IDLE_SECONDS))
        self._idle = used / (time.monotonic() - began)

    def _while(self, work: Callable[[], T]) -> tuple[int, T]:
        """Instructions while it runs, and what it gives."""
        _monitor(self._running.pid, "zero")
        given = work()
        _monitor(self._running.pid, "dump")
        (dump,) = self._folder.glob(f"{COUNTS}.*[0-9]")
        found = total(dump.read_text())
        dump.unlink()
        return found, given

    def count(self, generator: Generator, side: Side, mode: str) -> Count:
        """Raises Unavailable where an answer was wrong."""
        generator.load(self._running, side.body, mode, 1, WARM_SECONDS)
        blocks: list[float] = []
        for _ in range(BLOCKS):
            used, load = self._while(lambda: generator.load(self._running, side.body, mode, 1, BLOCK_SECONDS))
            if load.errors or not load.requests:
                raise Unavailable(f"{side.gateway}, {side.body}: {load.first_error or 'no answer'}")
            blocks.append((used - self._idle * load.seconds) / load.requests)
        return Count(blocks=tuple(sorted(blocks)))


def under_valgrind(launch: Launch, folder: Path) -> Launch:
    """The same gateway, uninstrumented until it is told."""
    script = folder / "unswitched.py"
    script.write_text(UNSWITCHED)
    tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / COUNTS}")
    words = launch.line[launch.line.index("proxy") + 1 :]
    environment = {**(launch.environment or {}), "PYTHONHASHSEED": "0"}
    line = (*tool, sys.executable, str(script), *words)
    return msgspec.structs.replace(launch, line=line, environment=environment, patience=START_SECONDS)


def _start(kind: str, field: Gateways, stack: ExitStack) -> tuple[Running, Counter]:
    launch, place = field.launch(kind, -1)
    running = launched(kind, under_valgrind(launch, place.folder), place, stack, field.site.cores)
    return running, Counter(running, place.folder)


def count_pairs(
    pairs: Sequence[Pair], field: Gateways, generator: Generator, say: Callable[[str], None]
) -> tuple[Counted, ...]:
    """One gateway of each kind, one after the other; each body is counted once for all pairs that have it."""
    missing = [tool for tool in ("valgrind", "vgdb") if not shutil.which(tool)]
    if missing:
        return tuple(Counted(pair=pair, why=f"there is no {missing[0]} (Debian: valgrind)") for pair in pairs)
    counts: dict[Side, Count] = {}
    whys: dict[str, str] = {}
    with ExitStack() as stack:
        running: dict[str, Running] = {}
        counters: dict[str, Counter] = {}
        for kind in dict.fromkeys(side.gateway for pair in pairs for side in (pair.mine, pair.other)):
            say(f"counting: {kind} starts")
            try:
                running[kind], counters[kind] = _start(kind, field, stack)
            except (Unavailable, OSError, subprocess.TimeoutExpired) as problem:
                whys[kind] = f"{kind}: {problem}".replace("\n", " ")
        return tuple(_counted(pair, running, counters, counts, whys, generator, say) for pair in pairs)


def _counted(
    pair: Pair,
    running: dict[str, Running],
    counters: dict[str, Counter],
    counts: dict[Side, Count],
    whys: dict[str, str],
    generator: Generator,
    say: Callable[[str], None],
) -> Counted:
    sides = (pair.mine, pair.other)
    if why := next((whys[side.gateway] for side in sides if side.gateway in whys), ""):
        return Counted(pair=pair, why=why)
    if why := proven(pair, running, generator):
        return Counted(pair=pair, why=why)
    mode = "json" if pair.kind == "json" else "sse"
    for side in sides:
        say(f"counting: {side.gateway}, {side.body}")
        try:
            counts[side] = counts.get(side) or counters[side.gateway].count(generator, side, mode)
        except (Unavailable, RuntimeError, subprocess.TimeoutExpired) as problem:
            return Counted(pair=pair, why=str(problem))
    return Counted(pair=pair, mine=counts[pair.mine], other=counts[pair.other])
