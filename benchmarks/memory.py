"""What a fresh process weighs: after its first answer, with streams open, and after many calls.

Fresh, because a heap that megabyte bodies have widened hides what a stream takes from it. Contenders are started here
beside those of the other cases, one at a time, and stopped again.
"""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from benchmarks.build import Unavailable
from benchmarks.cases import Plan
from benchmarks.contenders import Site, launch_of
from benchmarks.launch import HELLO, Running, asked, launched
from benchmarks.measure import Generator, result

LOOK_SECONDS = 0.05
WARM_STREAMS = 8  # open what is made once: modules, pools
CALLS_IN_FLIGHT = 16
CONTENDERS = ("pass-through", "weirgate")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. `stream`: what one more open stream takes, 0 where some stream failed. `calls`: (calls until then,
    resident bytes) after each block, each call a conversation of its own."""

    contender: str
    idle: int
    stream: float
    calls: tuple[tuple[int, int], ...]
    problem: str = ""

    @property
    def growth(self) -> int:
        """Over the last two blocks: about none where memory is bounded."""
        return self.calls[-1][1] - self.calls[-3][1] if len(self.calls) > 2 else 0


def _open_streams(generator: Generator, contender: Running, streams: int, plan: Plan) -> tuple[int, str]:
    """The most resident bytes seen while they are open, and what went wrong."""
    seconds = plan.held_chunks * 0.1 / 2  # all have started when the first is half through
    most = 0
    with generator.running(contender, "held", "sse", streams, seconds) as process:
        while True:
            try:
                process.wait(LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                most = max(most, contender.rss)
        load = result(process, seconds)
    return most, f"{load.errors} streams failed: {load.first_error}" if load.errors else ""


def _many_calls(generator: Generator, contender: Running, plan: Plan) -> tuple[tuple[tuple[int, int], ...], str]:
    done, seen, problem = 0, [], ""
    while len(seen) < plan.blocks and not problem:
        load = generator.load(contender, "1 KB new", "json", CALLS_IN_FLIGHT, 1.0)
        done += load.requests
        if load.errors or not load.requests:
            problem = f"{load.errors} calls failed: {load.first_error}"
        elif done >= (len(seen) + 1) * plan.block_calls:
            seen.append((done, contender.rss))
    return tuple(seen), problem


def _measured(name: str, site: Site, generator: Generator, plan: Plan, say: Callable[[str], None]) -> Memory:
    with ExitStack() as stack:
        place = site.place(f"fresh-{name}")
        fresh = launched(name, launch_of(name, place), place, stack, site.cores)
        say(f"memory streams {name}")
        for _ in range(20):
            asked(fresh.port, HELLO, fresh.headers)
        _open_streams(generator, fresh, WARM_STREAMS, plan)
        before = fresh.rss
        most, problem = _open_streams(generator, fresh, plan.held_streams, plan)
        say(f"memory calls {name}")
        calls, failed = _many_calls(generator, fresh, plan)
        return Memory(
            contender=name,
            idle=fresh.idle_rss,
            stream=0.0 if problem else max(0, most - before) / plan.held_streams,
            calls=calls,
            problem=problem or failed,
        )


def measure_memory(
    names: Sequence[str], site: Site, generator: Generator, plan: Plan, say: Callable[[str], None]
) -> tuple[Memory, ...]:
    found: list[Memory] = []
    for name in names:
        try:
            found.append(_measured(name, site, generator, plan, say))
        except (Unavailable, OSError, http.client.HTTPException) as problem:
            found.append(Memory(contender=name, idle=0, stream=0.0, calls=(), problem=str(problem)))
    return tuple(found)
