"""T-31: clients that ask for an endless stream and never read. They cost a bounded amount of memory each, the provider
is held back meanwhile, others are served, and after `write_idle` they are cut off.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.durability.asking import Line, chat
from tests.durability.process import Weir, running, usage_rows
from tests.fakes import Entry, Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks
from tests.scenarios.conftest import Figure
from tests.strict import StrictUpstream

CLIENTS = 100
WRITE_IDLE = 4.0
SLACK = 4.0
"""Seconds that a busy machine may be late."""
MIB = 1 << 20
KERNEL = 32 * 1024


class Endless:
    """Says the same for ever, as fast as it is taken. `peak` is the most that the gateway held while it did, `taken`
    when the last word of each answer was taken."""

    def __init__(self) -> None:
        self.weir: Weir | None = None
        self.peak = 0
        self.said = 0
        self.taken: dict[int, float] = {}
        self.words = chat_chunks("water " * 600, finish=None, size=4_000)[1]

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        clock = asyncio.get_running_loop().time
        while not reply.entry.gone.is_set():
            self.taken[id(reply.entry)] = clock()
            await reply.event(self.words)
            self.said += 1
            if self.said % 50 == 0 and self.weir is not None:
                self.peak = max(self.peak, self.weir.resident())


async def deaf(weir: Weir, number: int) -> Line:
    line = await weir.connect()
    line.writer.transport.pause_reading()
    await line.send(chat("endless", "Hello", stream=True, id=f"deaf-{number}"))
    return line


async def seconds_held(entry: Entry, endless: Endless) -> float:
    """From the last word that was taken of the provider until it was told to stop."""
    async with asyncio.timeout(60):
        await entry.gone.wait()
    return asyncio.get_running_loop().time() - endless.taken[id(entry)]


@pytest.mark.timeout(120)
async def test_readers_who_stop_are_bounded_in_memory_and_cut_off(tmp_path: Path, figure: Figure) -> None:
    endless = Endless()
    models = by_model({"endless": endless, "calm": StrictUpstream(window=None)})
    settings = {"server__limits__write_idle": WRITE_IDLE}
    async with ScriptedUpstream(models, kernel=KERNEL) as up, running(up.url, tmp_path, **settings) as weir:
        assert (await weir.ask(chat("calm", "Hello", stream=True, id="calm-1"))).acknowledged
        idle = endless.peak = weir.resident()
        endless.weir = weir
        lines = await asyncio.gather(*(deaf(weir, number) for number in range(CLIENTS)))
        await up.arrived(CLIENTS + 1)
        stopped = up.ledger[1 : CLIENTS + 1]
        held = asyncio.gather(*(seconds_held(entry, endless) for entry in stopped))
        calm = await weir.ask(chat("calm", "Hello", stream=True, id="calm-2"))
        seconds = await held
        for line in lines:
            line.leave()
    rows = [row for row in usage_rows(weir.file) if row["request"].startswith("deaf")]
    figure.all(
        ("31 MiB more than idle at the peak", (endless.peak - idle) / MIB, "<= 60"),
        ("31 others served meanwhile", calm.acknowledged, "== 1"),
        ("31 seconds the provider was held back, least", min(seconds), f">= {WRITE_IDLE / 2}"),
        ("31 seconds the provider was held back, most", max(seconds), f"<= {WRITE_IDLE + SLACK}"),
        # Ours, and what the kernel holds between the provider, us and the client.
        ("31 MiB in flight for one client, most", max(entry.sent for entry in stopped) / MIB, "<= 4"),
        ("31 rows closed as cut off", sum(row["status"] in ("cancelled", "partial") for row in rows), f"== {CLIENTS}"),
        ("31 rows flagged as estimated", sum(row["estimated"] for row in rows), f"== {CLIENTS}"),
    )
