"""T-05: `kill -9` in a compaction: before the summary, in its middle, at its end, in the call behind it.

Afterwards there is the old history or the new notes, never neither: the file is sound, the client who comes back is
answered, through the very notes where they had been stored, and no request of the user is lost. Notes are stored
before they are used, so a kill in the call behind them finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.durability.asking import Reply, chat
from tests.durability.process import Weir, database, running
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Wire, user
from tests.scenarios.summarisers import GOOD, Provider, account, checking, is_summary

WINDOW = 4_096
TURNS = 11
KILLS = 8
MANY = 100
STAGES = ("before the summary", "in the summary", "behind the summary", "in the call")
"""Where the kill comes. Behind the summary the notes may be stored or not; in the call they are."""


class House:
    """A provider that kills the gateway at the stage it is told."""

    def __init__(self) -> None:
        self.provider = Provider(self.summarise, None)
        self.stage = ""
        self.weir: Weir | None = None

    def kill(self) -> None:
        assert self.weir is not None
        self.stage = ""
        self.weir.signal(signal.SIGKILL)

    async def serve(self, request: SeenRequest, reply: Script) -> None:
        if self.stage == "in the call" and not is_summary(request):
            self.kill()
            await reply.entry.gone.wait()
        else:
            await self.provider(request, reply)

    async def summarise(self, request: SeenRequest, reply: Script) -> None:
        if self.stage == "before the summary":
            self.kill()
        await reply.head(200, {"content-type": "text/event-stream"})
        chunks: list[Any] = [*chat_chunks(GOOD, usage=usage(900, 90), size=64), b"[DONE]"]
        for number, chunk in enumerate(chunks):
            if self.stage == "in the summary" and number == len(chunks) // 2:
                self.kill()
            await reply.event(chunk)
        await reply.end()
        if self.stage == "behind the summary":
            self.kill()


async def killed(house: House, weir: Weir, stage: str, talk: list[Wire], number: int) -> None:
    """A client asks, and the gateway dies at `stage`."""
    house.weir, house.stage = weir, stage
    with contextlib.suppress(OSError, EOFError):
        await weir.ask(chat("scripted", talk, stream=number % 2 == 0, id=f"killed-{number}"))
    assert await weir.ended() == -signal.SIGKILL


def compactions(file: Path, name: str) -> tuple[int, int]:
    """How many are stored, and whether the file is unsound."""
    with database(file, name) as found:
        return found.ask("SELECT count(*) AS n FROM compaction")[0]["n"], int(not found.sound())


async def returned(house: House, weir: Weir, talk: list[Wire], number: int) -> tuple[Reply, int, int]:
    """The same client asks again: the answer, summaries made for it, requests of the user lost."""
    before = len(house.provider.summaries)
    reply = await weir.ask(chat("scripted", talk, stream=number % 2 == 1, id=f"back-{number}"))
    return reply, len(house.provider.summaries) - before, account(house.provider.told[-1], TURNS + 1)[3]


async def lived(folder: Path, kills: int) -> Counter[str]:
    house, draw, figures = House(), random.Random(kills), Counter[str]()
    stages = [stage for _ in range(kills // len(STAGES)) for stage in draw.sample(STAGES, len(STAGES))]
    known, last = 0, None
    async with ScriptedUpstream(house.serve) as up:
        for number, stage in enumerate([*stages, ""]):
            async with running(up.url, folder, "--window", str(WINDOW)) as weir:
                if last is not None:
                    talk, kept = last
                    reply, anew, lost = await returned(house, weir, talk, number)
                    figures["answered"] += reply.acknowledged and reply.compaction == "auto"
                    figures["lost"] += lost
                    figures["stored and made again"] += kept * anew
                    figures["neither"] += not kept and not anew
                    known += anew
                if stage:
                    talk = [user(f"This is conversation {number}."), *checking(TURNS)]
                    await killed(house, weir, stage, talk, number)
                    stored, unsound = compactions(weir.file, str(number))
                    kept, known = stored - known, stored
                    figures["kills"] += 1
                    figures["unsound"] += unsound
                    figures["kept"] += kept
                    figures["used before stored"] += stage == "in the call" and kept != 1
                    last = talk, kept
        with database(weir.file, "end") as found:
            rows = found.rows()
        figures["open"] = sum(row["status"] == "open" for row in rows)
        figures["unknown"] = sum(row["status"] == "unknown" for row in rows)
        figures["violations"] = len(house.provider.strict.violations)
    return figures


async def judged(folder: Path, kills: int, figure: Figure) -> None:
    figures = await asyncio.wait_for(lived(folder, kills), 15.0 * kills + 30)
    figure.all(
        ("05 kills during a compaction", figures["kills"], f"== {kills}"),
        ("05 files unsound", figures["unsound"], "== 0"),
        ("05 answered on return, through notes", figures["answered"], f"== {kills}"),
        ("05 neither old history nor notes", figures["neither"], "== 0"),
        ("05 notes stored before the kill", figures["kept"], f">= {kills // len(STAGES)}"),
        ("05 of these made again", figures["stored and made again"], "== 0"),
        ("05 notes used before they were stored", figures["used before stored"], "== 0"),
        ("05 requests of the user lost", figures["lost"], "== 0"),
        ("05 malformed prompts", figures["violations"], "== 0"),
        ("05 rows left open", figures["open"], "== 0"),
        ("05 rows closed as unknown", figures["unknown"], f"<= {2 * kills}"),
    )


@pytest.mark.timeout(180)
async def test_a_kill_during_a_compaction_leaves_the_old_history_or_new_notes(tmp_path: Path, figure: Figure) -> None:
    await judged(tmp_path, KILLS, figure)


@pytest.mark.slow
@pytest.mark.timeout(1_600)
async def test_a_hundred_kills_during_compactions_do(tmp_path: Path, figure: Figure) -> None:
    await judged(tmp_path, MANY, figure)
