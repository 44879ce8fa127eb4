"""T-58: three times as much as can be served. What was begun goes on at the same rate; the rest is refused, at once and
before its body is read. Capacity is the configured bound here, and a provider that takes its time; figures in
milliseconds are asserted in the slow tier only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.durability.asking import Line, chat
from tests.durability.process import Weir, running, usage_rows
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.scenarios.conftest import Figure

STREAMS = 10
TAKES = 0.25
"""Seconds of an answer: what the provider needs, and so what makes the capacity."""


@dataclass
class Seen:
    """Seconds of each answer, and of each refusal."""

    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)


async def provider(request: SeenRequest, reply: Script) -> None:
    await asyncio.sleep(TAKES)
    await reply.json(200, chat_reply("Hello.", usage=usage(9, 1)))


async def client(weir: Weir, seen: Seen, until: float, name: str, padding: int) -> None:
    """One call after another; who is refused asks again after half the time of an answer."""
    clock = asyncio.get_running_loop().time
    number = 0
    line: Line | None = None
    while clock() < until:
        line = line or await weir.connect()
        number += 1
        began = clock()
        await line.send(chat("m", "x" * padding, stream=False, id=f"{name}-{number}"))
        answer = await line.whole()
        took = clock() - began
        if answer.status == 200:
            seen.served.append(took)
            continue
        told = answer.status in (429, 503) and "retry-after" in answer.headers
        (seen.refused if told else seen.other).append(took)
        if answer.headers.get("connection") == "close":
            line.leave()
            line = None
        await asyncio.sleep(TAKES / 2)
    if line is not None:
        line.leave()


async def load(weir: Weir, clients: int, seconds: float, padding: int = 100) -> Seen:
    seen, until = Seen(), asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(weir, seen, until, f"{clients}-{number}", padding))
    return seen


async def measured(folder: Path, seconds: float) -> tuple[Seen, Seen, Seen, float, int]:
    """At capacity, at three times, and at twice with large bodies; refusals counted by the gateway; rows."""
    async with (
        ScriptedUpstream(provider) as up,
        running(up.url, folder, server__limits__streams=STREAMS, server__limits__streams_per_key=STREAMS) as weir,
    ):
        await load(weir, STREAMS, seconds / 4)  # everything is warm
        alone = await load(weir, STREAMS, seconds)
        three = await load(weir, 3 * STREAMS, seconds)
        large = await load(weir, 2 * STREAMS, seconds / 2, 300_000)
        shed = await weir.metric("weirgate_shed_requests_total")
        again = await load(weir, STREAMS, seconds / 4)
        assert again.refused == again.other == []  # and it is over when it is over
    return alone, three, large, shed, len(usage_rows(weir.file))


async def test_three_times_capacity_costs_what_runs_nothing(tmp_path: Path, figure: Figure) -> None:
    alone, three, large, shed, rows = await measured(tmp_path, 3.0)
    answer, refusals = median(alone.served), len(three.refused + large.refused)
    figure.all(
        ("58 goodput at three times capacity, of that at capacity", len(three.served) / len(alone.served), ">= 0.7"),
        ("58 neither served nor refused with a time to wait", len(three.other + large.other), "== 0"),
        ("58 refusals", refusals, ">= 10"),
        ("58 refusals, median, of the time of an answer", median(three.refused) / answer, "<= 0.5"),
        ("58 refusals of large bodies, the same", median(large.refused) / answer, "<= 0.5"),
        ("58 refused by their heads alone, of all refusals", shed / refusals, ">= 0.5"),
    )
    assert rows > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_three_times_capacity_for_longer(tmp_path: Path, figure: Figure) -> None:
    alone, three, large, shed, _ = await measured(tmp_path, 10.0)
    figure.all(
        ("58 goodput at three times capacity, of that at capacity", len(three.served) / len(alone.served), ">= 0.9"),
        ("58 refusals, 99 %, milliseconds", 1000 * quantiles(three.refused, n=100)[-1], "<= 50"),
        ("58 refusals of large bodies, 99 %, milliseconds", 1000 * quantiles(large.refused, n=100)[-1], "<= 50"),
        ("58 refused by their heads alone", shed, ">= 100"),
    )
