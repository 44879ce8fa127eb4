"""T-24: clients that leave all the time, at every stage of a call. Afterwards the gateway is as it was before: it
answers everybody, holds no connection, descriptor or task of those who left, and has a closed row for each upstream
call.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.durability.asking import Line, chat
from tests.durability.process import Row, Weir, running, usage_rows
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure
from tests.server.wired import chat as exchange
from tests.server.wired import wired

WORKERS = 20
LONGEST = 0.15
"""Seconds a client waits at most before it leaves."""
AFTER = 100
LEAST = 50
"""Calls left before their head, and in the middle, however slow the machine is."""


class Dawdling:
    """Takes its time before the head, before the first word and between words: about as long as clients wait."""

    def __init__(self) -> None:
        self.draw = random.Random(5)
        self.calm = False
        self.never = asyncio.Event()

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        await self.dawdle()
        if not request.stream:
            await reply.json(200, chat_reply("Whole.", usage=usage(9, 1)))
            return
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("A weir keeps a river from overflowing.", usage=usage(9, 9)):
            await self.dawdle()
            await reply.event(chunk)
        await reply.event(b"[DONE]")
        await reply.end()

    async def dawdle(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.calm else self.draw.random() * LONGEST / 3):
                await self.never.wait()


class Worker:
    def __init__(self, weir: Weir, number: int, until: float, left: Counter[str]) -> None:
        self.weir = weir
        self.number = number
        self.until = until
        self.draw = random.Random(number)
        self.left = left
        """How the calls of all workers ended."""

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        calls = 0
        while clock() < self.until or min(self.left["before the head"], self.left["in the middle"]) < LEAST:
            calls += 1
            await self.call(f"worker{self.number}-{calls}")

    async def call(self, id: str) -> None:
        line = await self.weir.connect()
        try:
            async with asyncio.timeout(self.draw.random() * LONGEST):
                await self.go_on(line, id)
        except TimeoutError:
            self.left[line.stage] += 1
        else:
            self.left["answered"] += 1
        finally:
            line.leave(reset=self.draw.random() < 0.5)

    async def go_on(self, line: Line, id: str) -> None:
        request = chat("slow", "Hello there.", stream=self.draw.random() < 0.5, id=id)
        cut = self.draw.randrange(len(request)) if self.draw.random() < 0.1 else len(request)
        await line.send(request[:cut])
        await line.whole()


async def descriptors(weir: Weir, up: ScriptedUpstream, most: int) -> int:
    """How many the gateway holds, but for connections to the provider that are kept open: at most `most` as soon as
    the last ones are closed, which the two ends do not notice at once."""
    held = most + 1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while (held := weir.descriptors() - up.open) > most:
                await weir.get("/healthz")
    return held


async def ask_all(weir: Weir, name: str) -> list[bool]:
    asked = [
        weir.ask(chat("slow", "Hello there.", stream=number % 2 == 0, id=f"{name}-{number}")) for number in range(AFTER)
    ]
    answers = await asyncio.gather(*asked)
    return [answer.acknowledged and bool(answer.text) for answer in answers]


def unaccounted(rows: list[Row], up: ScriptedUpstream) -> int:
    """Upstream calls without their one closed row, and rows of calls that say more than that they never went out."""
    called = Counter(entry.request.headers["x-request-id"] for entry in up.ledger)
    closed = Counter(row["request"] for row in rows if row["status"] != "open")
    wrong = sum(closed[id] != calls for id, calls in called.items())
    return wrong + sum(row["status"] != "cancelled" for row in rows if row["request"] not in called)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seconds", [4, pytest.param(10, marks=pytest.mark.slow)])
async def test_twenty_workers_who_leave_all_the_time_leave_nothing_behind(
    seconds: float, tmp_path: Path, figure: Figure
) -> None:
    clock = asyncio.get_running_loop().time
    dawdling = Dawdling()
    async with ScriptedUpstream(dawdling) as up, running(up.url, tmp_path) as weir:
        await ask_all(weir, "before")
        await weir.still()
        await up.idle()
        before = weir.descriptors() - up.open
        left: Counter[str] = Counter()
        workers = [Worker(weir, number, clock() + seconds, left) for number in range(WORKERS)]
        await asyncio.gather(*(worker.run() for worker in workers))
        await weir.still()
        await up.idle()
        in_flight = await weir.metric("weirgate_in_flight")
        leaked = await descriptors(weir, up, most=before) - before
        dawdling.calm = True
        answered = sum(await ask_all(weir, "after"))
        busy = up.busy
    rows = usage_rows(weir.file)
    figure.all(
        ("24 calls left", left.total() - left["answered"], f">= {2 * LEAST}"),
        ("24 left before the head", left["before the head"], f">= {LEAST}"),
        ("24 left in the middle", left["in the middle"], f">= {LEAST}"),
        ("24 answered afterwards", answered, f"== {AFTER}"),
        ("24 weirgate_in_flight, the scrape itself included", in_flight, "== 1"),
        ("24 upstream calls in use", busy, "<= 0"),
        ("24 descriptors leaked", leaked, "<= 0"),
        ("24 rows left open", sum(row["status"] == "open" for row in rows), "<= 0"),
        ("24 upstream calls", len(up.ledger), f">= {2 * LEAST}"),
        ("24 of these without their one closed row", unaccounted(rows, up), "<= 0"),
    )


async def test_no_task_outlives_the_clients_who_left(figure: Figure) -> None:
    """The same inside one process, where tasks can be counted."""
    async with wired(Dawdling()) as weir:
        body = {"model": "slow", "messages": [{"role": "user", "content": "Hello there."}]}
        await exchange(weir.app, body).done()
        before = len(asyncio.all_tasks())
        draw = random.Random(3)

        async def leave(number: int) -> None:
            asked = exchange(weir.app, {**body, "stream": number % 2 == 0})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(draw.random() * LONGEST):
                    await weir.up.arrived(len(weir.up.ledger) + 1)
            asked.leave()
            await asked.done()

        for _ in range(20):
            await asyncio.gather(*map(leave, range(15)))
        await weir.up.idle()
        rows = await weir.settled()
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before + weir.up.open:
                await asyncio.sleep(0)
        upstream = weir.app.places.upstreams["main"]
        figure.all(
            ("24 in one process: calls", len(rows), ">= 200"),
            ("24 in one process: tasks leaked", len(asyncio.all_tasks()) - before - weir.up.open, "<= 0"),
            ("24 in one process: upstream connections in use", upstream.in_flight, "<= 0"),  # type: ignore[attr-defined]
            ("24 in one process: upstream calls without a row", unaccounted_rows(rows, weir.up), "<= 0"),
        )


def unaccounted_rows(rows: list[object], up: ScriptedUpstream) -> int:
    return max(0, len(up.ledger) - len(rows))
