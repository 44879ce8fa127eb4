"""T-31: clients that ask for an endless stream and never read. They cost a bounded amount of memory each, the provider
is held back meanwhile, and after `write_idle` they are cut off.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.durability.asking import Line, chat
from tests.durability.process import Weir, running, usage_rows
from tests.fakes import Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks
from tests.scenarios.conftest import Figure
from tests.strict import StrictUpstream

CLIENTS = 100
WRITE_IDLE = 4.0
MIB = 1 << 20


class Endless:
    """Says the same for ever, as fast as it is taken. `peak` is the most the gateway held while it did."""

    def __init__(self) -> None:
        self.weir: Weir | None = None
        self.peak = 0
        self.said = 0
        self.words = chat_chunks("water " * 600, finish=None, size=4_000)[1]

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        while not reply.entry.gone.is_set():
            await reply.event(self.words)
            self.said += 1
            if self.said % 50 == 0 and self.weir is not None:
                self.peak = max(self.peak, self.weir.resident())


@pytest.mark.timeout(90)
async def test_readers_who_stop_are_bounded_in_memory_and_cut_off(tmp_path: Path, figure: Figure) -> None:
    clock = asyncio.get_running_loop().time
    endless = Endless()
    limits = {"server__limits__write_idle": WRITE_IDLE}
    models = by_model({"endless": endless, "calm": StrictUpstream(window=None)})
    async with ScriptedUpstream(models) as up, running(up.url, tmp_path, **limits) as weir:
        assert (await weir.ask(chat("calm", "Hello", stream=True, id="calm"))).acknowledged
        idle = weir.resident()
        endless.weir = weir
        began = clock()
        lines = await asyncio.gather(*(deaf(weir, number) for number in range(CLIENTS)))
        await up.arrived(CLIENTS + 1)
        gone = await asyncio.gather(*(seconds_until(entry.gone, began) for entry in up.ledger[1:]))
        print([e.sent/1e6 for e in up.ledger][:10], sorted(gone)[:3], sorted(gone)[-3:], idle/MIB, endless.peak/MIB, weir.resident()/MIB)
        for line in lines:
            line.leave()


async def deaf(weir: Weir, number: int) -> Line:
    line = await weir.connect()
    line.writer.transport.pause_reading()
    await line.send(chat("endless", "Hello", stream=True, id=f"deaf-{number}"))
    return line


async def seconds_until(event: asyncio.Event, began: float) -> float:
    async with asyncio.timeout(60):
        await event.wait()
    return asyncio.get_running_loop().time() - began
