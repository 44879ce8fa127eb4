"""How many paced streams one core carries: doubled until the delay breaks, then halved down to a twentieth.

A count holds if every chunk of every stream came and the 99th percentile of their delays, their starts included, is
within the bound. A break is asked for twice before it is believed: on a busy machine one sample says little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Climber

import msgspec

from benchmarks.cases import Case, Plan
from benchmarks.launch import Running
from benchmarks.measure import Generator, Load

DELAY_US = 25_000.0
RESOLUTION = 0.05
OWN_START = 100
PEER_START = 10
OWN_CLIMBERS = ("pass-through", "weirgate")


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The most streams that held; `delay_p99_us` at that count. 0 streams: not even the fewest that were tried.
    `bounded` by the search's end or by the tools, not by the contender: it carries more."""

    contender: str
    streams: int
    delay_p99_us: float = 0.0
    bounded: bool = False


def climb(start: int, most: int, resolution: float = RESOLUTION) -> Climber[int, bool, int]:
    """Yields counts to try and is sent whether each held; returns the most that held, 0 if none did."""
    held, broke = 0, most + 1
    count = min(start, most)
    while count > held and count < broke:
        if (yield count) or (yield count):
            held = count
        else:
            broke = count
        if broke > most:
            count = min(held * 2, most)
        elif broke - held <= max(1, int(broke * resolution)):
            break
        else:
            count = (held + broke) // 2
    return held


def holds(load: Load) -> bool:
    return load.errors == 0 and load.requests > 0 and load.delay_p99_us <= DELAY_US


def climbers(running: Sequence[Running], own: Sequence[str]) -> tuple[Running, ...]:
    """Who is asked: the gateway, its yardstick, and the peers. nginx carries more than the generator can make."""
    return tuple(one for one in running if one.name in OWN_CLIMBERS or one.name not in own)


def measure_capacity(
    asked: Sequence[Running], direct: Running, generator: Generator, plan: Plan, say: Callable[[str], None]
) -> tuple[Capacity, ...]:
    """All climb in turn, one sample each, so that a noisy minute meets all of them. `direct` is asked last, for the
    highest count: where it does not hold, it is the tools that were measured."""

    def sample(contender: Running, count: int) -> Load:
        say(f"capacity {count} {contender.name}")
        case = Case(name="capacity", title="", body="paced", in_flight=count, kind="paced")
        return generator.sample(case, contender, plan).load

    waiting = {
        one.name: climb(OWN_START if one.name in OWN_CLIMBERS else PEER_START, plan.most_streams) for one in asked
    }
    tries = {name: next(climber) for name, climber in waiting.items()}
    delays: dict[tuple[str, int], float] = {}
    found: dict[str, int] = {}
    while tries:
        for one in asked:
            if one.name not in tries:
                continue
            count = tries[one.name]
            load = sample(one, count)
            if holds(load):
                delays[one.name, count] = load.delay_p99_us
            try:
                tries[one.name] = waiting[one.name].send(holds(load))
            except StopIteration as end:
                found[one.name] = end.value
                del tries[one.name]
    top = max(found.values(), default=0)
    tools_hold = bool(top) and (holds(sample(direct, top)) or holds(sample(direct, top)))
    return tuple(
        Capacity(
            contender=name,
            streams=streams,
            delay_p99_us=delays.get((name, streams), 0.0),
            bounded=streams >= plan.most_streams or (streams == top and streams > 0 and not tools_hold),
        )
        for name, streams in ((one.name, found[one.name]) for one in asked)
    )
