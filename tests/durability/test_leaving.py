"""T-30: the client leaves, at every stage of a call. The provider is told within a second, so that it can stop billing;
the row says that the call was cut off, and counts what the provider had read and written until then, as an estimate.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.durability.asking import Line, chat
from tests.durability.process import Weir, running, usage_rows
from tests.fakes import Entry, Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks
from tests.scenarios.conftest import Figure

EACH = 10
QUESTION = "How does a weir keep a river from overflowing? " * 4
CHUNKS = chat_chunks("A weir keeps a river from overflowing.")

Client = Callable[[Line], Awaitable[None]]


def until(chunks: int | None) -> Callable[[SeenRequest, Script], Awaitable[None]]:
    """Says that many chunks (None: no head either), then nothing until the gateway closes."""

    async def handler(request: SeenRequest, reply: Script) -> None:
        if chunks is not None:
            await reply.head(200, {"content-type": "text/event-stream"})
            for chunk in CHUNKS[:chunks]:
                await reply.event(chunk)
        await reply.hang()

    return handler


async def nothing(line: Line) -> None:
    """It has heard nothing yet."""


def hearing(word: bytes) -> Client:
    async def heard(line: Line) -> None:
        await line.head()
        told = b""
        while word not in told:
            told += await line.piece()

    return heard


SCRIPTS = {"silent": None, "head": 0, "first": 1, "middle": 3, "last": len(CHUNKS)}

# stage: (what the provider does, whether the client streams, what it has heard when it leaves)
STAGES: dict[str, tuple[str, bool, Client]] = {
    "JSON, waiting": ("silent", False, nothing),
    "JSON, while the body comes": ("middle", False, nothing),
    "before the head": ("silent", True, nothing),
    "before the first chunk": ("head", True, nothing),
    "before the first word": ("first", True, nothing),
    "in mid-stream": ("middle", True, hearing(CHUNKS[2]["choices"][0]["delta"]["content"].encode())),
    "at the last chunk": ("last", True, hearing(b"owing")),
}


async def leave(weir: Weir, up: ScriptedUpstream, stage: str, number: int) -> float:
    """Seconds until the provider saw the close."""
    script, stream, hear = STAGES[stage]
    clock = asyncio.get_running_loop().time
    id = f"{stage.replace(' ', '_').replace(',', '')}-{number}"
    line = await weir.connect()
    await line.send(chat(script, QUESTION, stream=stream, id=id))
    entry = await arrived(up, id)
    await hear(line)
    if stream and SCRIPTS[script]:
        await written(entry)
    line.leave(reset=number % 2 == 0)
    left = clock()
    async with asyncio.timeout(20):
        await entry.gone.wait()
    return clock() - left


async def arrived(up: ScriptedUpstream, id: str) -> Entry:
    for count in range(1, 1_000):
        entry = await up.arrived(count)
        if entry.request.headers["x-request-id"] == id:
            return entry
    raise AssertionError(f"{id} never came")


async def written(entry: Entry) -> None:
    """Until the provider has said what it will say."""
    async with asyncio.timeout(10):
        while entry.sent < 200:
            await asyncio.sleep(0)


@pytest.mark.timeout(90)
async def test_whoever_leaves_stops_the_provider_within_a_second(tmp_path: Path, figure: Figure) -> None:
    handler = by_model({name: until(chunks) for name, chunks in SCRIPTS.items()})
    took: dict[str, list[float]] = {}
    async with ScriptedUpstream(handler) as up, running(up.url, tmp_path) as weir:
        for stage in STAGES:
            took[stage] = await asyncio.gather(*(leave(weir, up, stage, number) for number in range(EACH)))
        await up.idle()
    rows = usage_rows(weir.file)
    every = sorted(seconds for stage in took.values() for seconds in stage)
    spoken = [row for row in rows if row["request"].startswith(("in_mid", "at_the_last"))]
    figure.all(
        *((f"30 {stage}: slowest", max(seconds), "<= 1") for stage, seconds in took.items()),
        ("30 p99 of all, seconds", every[math.ceil(len(every) * 0.99) - 1], "<= 1"),
        ("30 rows", len(rows), f"== {EACH * len(STAGES)}"),
        ("30 rows cancelled or partial", sum(r["status"] in ("cancelled", "partial") for r in rows), f"== {len(rows)}"),
        ("30 rows flagged as estimated", sum(row["estimated"] for row in rows), f"== {len(rows)}"),
        ("30 rows that count the prompt", sum(row["input"] > 40 for row in rows), f"== {len(rows)}"),
        ("30 rows that count the words said", sum(row["output"] > 0 for row in spoken), f"== {2 * EACH}"),
    )


async def test_a_request_that_never_came_whole_calls_nobody(tmp_path: Path, figure: Figure) -> None:
    async with ScriptedUpstream(until(None)) as up, running(up.url, tmp_path) as weir:
        request = chat("silent", QUESTION, stream=True, id="cut-off")
        for size in (10, 100, len(request) - 1):
            line = await weir.connect()
            await line.send(request[:size])
            line.leave(reset=size != 100)
        await weir.still()
    figure.all(
        ("30 in head or body: upstream calls", len(up.ledger), "<= 0"),
        ("30 in head or body: rows", len(usage_rows(weir.file)), "<= 0"),
    )
