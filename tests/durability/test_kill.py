"""T-01, T-03, T-04: `kill -9` in the middle of everything. What was acknowledged is there afterwards, in one row that
says so; a compaction that a client was told of is found again; what was cut off is closed as `unknown`.

Two gateways, each on a file of its own, are killed ten times each: one waits for the opening of a row before the call
(`usage.strict`), so that no upstream call at all is without a row. Conversations grow past their window while calls
hang before their head and in mid-stream; the kill comes at an event drawn at random, never after a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.durability.asking import Reply, chat
from tests.durability.process import Database, Row, Weir, database, running
from tests.fakes import Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks
from tests.scenarios.conftest import Figure
from tests.strict import StrictUpstream

WINDOW = 2_048
NARROW = 1_536
"""The window of a model of whose size the gateway knows nothing better than WINDOW: its compactions are recoveries."""
TRIGGER = 0.85
KILLS = 10
TALKS = 9
SINGLE = 4
WORDS = "harbour ledger tide module value error build client window token river gate sluice bank level".split()


@dataclass(frozen=True)
class Ack:
    """An acknowledged turn."""

    id: str
    round: int
    compaction: str
    added: int
    """Tokens, generously, that the next request has more than this one."""


@dataclass
class Talk:
    """A conversation whose client sends its whole history each time; in mode off, single questions: of these nothing
    but the row is written."""

    name: str
    model: str
    stream: bool
    draw: random.Random
    mode: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    asked: int = 0

    def request(self, words: int) -> tuple[str, bytes, list[dict[str, Any]]]:
        self.asked += 1
        text = " ".join(f"{self.draw.choice(WORDS)}{self.draw.randrange(1000)}" for _ in range(words))
        messages = [*self.messages, {"role": "user", "content": f"{self.name} {self.asked}: {text}"}]
        id = f"{self.name}-{self.asked}"
        headers = chat(self.model, messages, stream=self.stream, id=id, key=self.name, mode=self.mode, max_tokens=64)
        return id, headers, messages

    def take(self, id: str, round: int, messages: list[dict[str, Any]], reply: Reply) -> None:
        self.messages = [] if self.mode else [*messages, {"role": "assistant", "content": reply.text}]
        size = sum(len(message["content"]) for message in self.messages[-2:]) // 3
        self.acks.append(Ack(id, round, reply.compaction, size))


async def hang_before_the_head(request: SeenRequest, reply: Script) -> None:
    await reply.entry.gone.wait()


async def hang_in_the_middle(request: SeenRequest, reply: Script) -> None:
    await reply.head(200, {"content-type": "text/event-stream"})
    for chunk in chat_chunks("It never comes to an end", finish=None):
        await reply.event(chunk)
    await reply.entry.gone.wait()


class Lane:
    """One gateway's life: ten rounds of load, each ended by a kill, and a last one that ends well."""

    def __init__(self, folder: Path, *, strict: bool) -> None:
        self.folder = folder
        self.strict = strict
        self.draw = random.Random(7 + strict)
        self.talks = [
            Talk(f"talk{number}", "narrow" if number % 3 == 2 else "wide", number % 2 == 0, random.Random(number))
            for number in range(TALKS)
        ]
        self.talks += [Talk(f"single{n}", "wide", n % 2 == 0, random.Random(n), mode="off") for n in range(SINGLE)]
        self.round = 0
        self.unsound = 0
        self.open: set[str] = set()
        """Rows that a kill left open."""
        self.twice = 0
        self.until_kill = 0
        self.killed = asyncio.Event()
        self.weir: Weir | None = None
        models = {
            "wide": self.counted(StrictUpstream(window=WINDOW, answer=self.answer)),
            "narrow": self.counted(StrictUpstream(window=NARROW, answer=self.answer)),
            "head": hang_before_the_head,
            "middle": hang_in_the_middle,
        }
        self.up = ScriptedUpstream(by_model(models))

    def answer(self, request: SeenRequest) -> str:
        return f"The harbour holds {len(request.body)} crates. " * 4

    def counted(self, handler: StrictUpstream) -> Any:
        async def serve(request: SeenRequest, reply: Script) -> None:
            self.event()
            await handler(request, reply)
            self.event()

        return serve

    def event(self) -> None:
        """Something happened: a request has come to the provider, was answered, was acknowledged. One of these is the
        last."""
        self.until_kill -= 1
        if self.until_kill == 0 and self.weir is not None:
            self.weir.signal(signal.SIGKILL)
            self.killed.set()

    async def live(self) -> None:
        async with self.up:
            for self.round in range(KILLS + 1):
                self.killed.clear()
                self.until_kill = 0
                async with self.running() as self.weir:
                    await asyncio.gather(*(self.turn(talk, 5) for talk in self.talks))
                    if self.round < KILLS:
                        await self.until_killed(self.weir)
                if self.round < KILLS:
                    self.examine()

    def running(self) -> contextlib.AbstractAsyncContextManager[Weir]:
        return running(self.up.url, self.folder, "--window", str(WINDOW), usage__strict=self.strict)

    async def until_killed(self, weir: Weir) -> None:
        self.until_kill = self.draw.randrange(60, 180)
        asked = [self.cut_off(model, f"{model}-{self.round}-{n}") for model in ("head", "middle") for n in range(3)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(self.talk_on(talk) for talk in self.talks), *asked)
            await self.killed.wait()
            assert await weir.ended() == -signal.SIGKILL

    async def talk_on(self, talk: Talk) -> None:
        with contextlib.suppress(OSError, EOFError):
            while not self.killed.is_set():
                await self.turn(talk, self.draw.randrange(6, 14))
                self.event()

    async def cut_off(self, model: str, id: str) -> None:
        assert self.weir is not None
        with contextlib.suppress(OSError, EOFError):
            await self.weir.ask(chat(model, "Hello", stream=model == "middle", id=id))
            raise AssertionError("a call that hangs was answered")

    async def turn(self, talk: Talk, words: int) -> None:
        assert self.weir is not None
        id, request, messages = talk.request(words)
        reply = await self.weir.ask(request)
        assert reply.acknowledged, (id, reply.status, reply.body[-500:])
        talk.take(id, self.round, messages, reply)

    def examine(self) -> None:
        """The file as the kill left it."""
        with database(self.weir.file, f"{self.round}") as found:  # type: ignore[union-attr]
            self.unsound += not found.sound()
            self.open |= {row["id"] for row in found.rows() if row["status"] == "open"}


def judge(lane: Lane, found: Database) -> Counter[str]:
    """The figures of one life, from the file at its end."""
    rows = found.rows()
    by_request: dict[str, list[Row]] = {}
    for row in rows:
        if row["purpose"] != "compaction":  # summaries are calls too, but nobody is shown their answers
            by_request.setdefault(row["request"], []).append(row)
    compactions = {row["id"] for row in found.ask("SELECT id FROM compaction")}
    figures: Counter[str] = Counter()
    for talk in lane.talks:
        for ack in talk.acks:
            figures["acknowledged"] += 1
            ended = [row for row in by_request.get(ack.id, ()) if row["status"] == "ok"]
            figures["lost"] += len(ended) != 1
            figures["announced"] += ack.compaction in ("auto", "recovered")
            figures["compaction lost"] += ack.compaction != "none" and ended[0]["compaction_id"] not in compactions
        for before, after in zip(talk.acks, talk.acks[1:], strict=False):
            if before.round != after.round and before.compaction != "none":
                figures.update(found_again(by_request, before, after))
    figures["open"] = sum(row["status"] == "open" for row in rows)
    figures["left open"] = len(lane.open)
    figures["not unknown"] = sum(row["status"] != "unknown" for row in rows if row["id"] in lane.open)
    figures["unsound"] = lane.unsound + (not found.sound())
    called = Counter(entry.request.headers["x-request-id"] for entry in lane.up.ledger)
    booked = Counter(row["request"] for row in rows)
    figures["without a row"] = (called - booked).total()
    return figures


def found_again(by_request: dict[str, list[Row]], before: Ack, after: Ack) -> Counter[str]:
    """Whether the first turn after a restart was told through the compaction of the last one before it."""
    then, now = (by_request[ack.id][-1] for ack in (before, after))
    if then["projected"] + before.added > TRIGGER * then["window"]:
        return Counter(outgrown=1)  # a new one was due
    same = then["compaction_id"] == now["compaction_id"] and len(by_request[after.id]) == 1
    return Counter({"over a restart": 1, "not found again": not same})


@pytest.mark.timeout(240)
async def test_twenty_kills_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path, figure: Figure) -> None:
    lanes = []
    for strict in (False, True):
        folder = tmp_path / ("strict" if strict else "plain")
        folder.mkdir()
        lanes.append(Lane(folder, strict=strict))
    await asyncio.gather(*(lane.live() for lane in lanes))
    figures: Counter[str] = Counter()
    for lane in lanes:
        with database(lane.folder / "weirgate.db", "end") as found:
            judged = judge(lane, found)
        if not lane.strict:
            # Rows are opened in the background by default: a call that nobody was answered may be without one.
            judged.pop("without a row")
        figures.update(judged)
    figure.all(
        ("01 kills", 2 * KILLS, ">= 20"),
        ("01 acknowledged", figures["acknowledged"], ">= 200"),
        ("01 acknowledged without exactly one row closed ok", figures["lost"], "<= 0"),
        ("01 integrity checks failed", figures["unsound"], "<= 0"),
        ("03 rows a kill left open", figures["left open"], ">= 60"),
        ("03 of these not closed as unknown", figures["not unknown"], "<= 0"),
        ("03 rows open at the end", figures["open"], "<= 0"),
        ("03 strict: upstream calls without a row", figures["without a row"], "<= 0"),
        ("04 compactions announced", figures["announced"], ">= 100"),
        ("04 announced and not stored", figures["compaction lost"], "<= 0"),
        ("04 in use over a restart", figures["over a restart"], ">= 20"),
        ("04 of these not found again", figures["not found again"], "<= 0"),
    )
