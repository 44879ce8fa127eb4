"""`kill -9` under fifty conversations that the gateway keeps, each spoken to by twenty at once: nothing acknowledged is
lost, doubled or out of order.

Who is refused because a turn runs, or is cut off by a kill, sends the same again under the same key until it is
answered. The history is checked from the file, when all have been answered: each message stands once on its path, right
before the answer that its sender was given, and one that was acknowledged before another was sent stands before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.durability.asking import Reply
from tests.durability.process import Weir, database, running
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure

BOUND = 5.0
"""Seconds that a sender who was refused waits for the conversation to move at most."""


@dataclass
class Sent:
    """One message: when it was sent first and when it was acknowledged, on one clock of events."""

    text: str
    began: int
    ended: int = 0
    answer: str = ""


@dataclass
class Talk:
    id: str = ""
    sent: list[Sent] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self) -> None:
        """A turn of it has ended, or was cut off: whoever was refused may ask again."""
        self.moved.set()
        self.moved = asyncio.Event()


async def echo(request: SeenRequest, reply: Script) -> None:
    said = f"re: {request.messages[-1]['content']}"
    counted = usage(20, 5)
    if request.stream:
        await reply.sse(chat_chunks(said, usage=counted))
    else:
        await reply.json(200, chat_reply(said, usage=counted))


def post(path: str, body: object, key: str = "") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *([f"Idempotency-Key: {key}"] if key else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


class Load:
    """Talks and their senders, over the lives of several processes."""

    def __init__(self, folder: Path, upstream: str, talks: int, kills: int, between: tuple[int, int]) -> None:
        self.folder = folder
        self.upstream = upstream
        self.talks = [Talk() for _ in range(talks)]
        self.kills = kills
        self.between = between
        """Acknowledgements between two kills."""
        self.killed = 0
        self.draw = random.Random(11)
        self.clock = itertools.count(1)
        self.weir: Weir | None = None
        self.up = asyncio.Event()
        self.acknowledged = 0
        self.next_kill = 0

    async def live(self, senders: int) -> None:
        everyone: asyncio.Future[list[None]] | None = None
        for life in range(self.kills + 1):
            async with running(self.upstream, self.folder) as self.weir:
                if everyone is None:
                    await asyncio.gather(*map(self.create, self.talks))
                    everyone = asyncio.gather(
                        *(self.speak(talk, f"{n}.{k}") for n, talk in enumerate(self.talks) for k in range(senders))
                    )
                self.next_kill = self.acknowledged + self.draw.randrange(*self.between) if life < self.kills else 0
                self.up.set()
                killed = asyncio.create_task(self.weir.child.wait())
                await asyncio.wait([everyone, killed], return_when=asyncio.FIRST_COMPLETED)
                if everyone.done():
                    killed.cancel()
                    everyone.result()

    async def create(self, talk: Talk) -> None:
        assert self.weir is not None
        made = await self.weir.ask(post("/v1/conversations", {}))
        assert made.status == 200, made.body
        talk.id = json.loads(made.body)["id"]

    async def speak(self, talk: Talk, text: str) -> None:
        sent = Sent(text=text, began=next(self.clock))
        talk.sent.append(sent)
        stream = self.draw.random() < 0.5
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
        request = post("/v1/chat/completions", {**body, "conversation": talk.id}, key=text)
        while not sent.ended:
            await self.up.wait()
            moved = talk.moved
            reply = await self.ask(request)
            if reply is not None and reply.acknowledged:
                sent.answer, sent.ended = reply.text, next(self.clock)
                self.count()
            elif reply is not None and reply.status == 409:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BOUND):
                        await moved.wait()
                continue
            else:
                assert reply is None or not reply.acknowledged
            talk.move()

    def count(self) -> None:
        self.acknowledged += 1
        if self.acknowledged == self.next_kill:
            assert self.weir is not None
            self.up.clear()
            self.killed += 1
            self.weir.signal(signal.SIGKILL)

    async def ask(self, request: bytes) -> Reply | None:
        assert self.weir is not None
        with contextlib.suppress(OSError, EOFError, AssertionError):
            return await self.weir.ask(request)
        return None


def judge(load: Load, file: Path) -> dict[str, int]:
    figures = {"acknowledged": 0, "lost": 0, "doubled": 0, "out of order": 0, "wrong": 0}
    with database(file, "end") as found:
        items = found.ask("SELECT conversation, id, parent, wire FROM owned_item")
        heads = {row["id"]: row["head"] for row in found.ask("SELECT id, head FROM owned")}
    by_id = {(row["conversation"], row["id"]): row for row in items}
    for talk in load.talks:
        path = []
        at = heads[talk.id]
        while at is not None:
            row = by_id[talk.id, at]
            path.append(json.loads(row["wire"]))
            at = row["parent"]
        said = [message["content"] for message in reversed(path)]
        places = {text: place for place, text in enumerate(said)}
        for sent in talk.sent:
            figures["acknowledged"] += bool(sent.ended)
            figures["lost"] += sent.text not in places
            figures["doubled"] += said.count(sent.text) > 1 or said.count(f"re: {sent.text}") > 1
            figures["wrong"] += sent.answer not in said[places.get(sent.text, 0) :]
        for one, other in itertools.permutations(talk.sent, 2):
            figures["out of order"] += one.ended < other.began and places[one.text] > places[other.text]
    return figures


async def drive(folder: Path, figure: Figure, *, talks: int, senders: int, kills: int) -> None:
    between = talks * senders // (kills * 2), talks * senders // kills
    async with asyncio.timeout(600), ScriptedUpstream(echo) as up:
        load = Load(folder, up.url, talks, kills, between)
        await load.live(senders)
    found = judge(load, folder / "weirgate.db")
    figure.all(
        ("kills under kept conversations", load.killed, f"== {kills}"),
        ("kept acknowledged", found["acknowledged"], f"== {talks * senders}"),
        *((f"kept {name}", found[name], "== 0") for name in ("lost", "doubled", "out of order", "wrong")),
    )


@pytest.mark.timeout(120)
async def test_what_was_acknowledged_in_kept_conversations_stands_once_and_in_order(
    tmp_path: Path, figure: Figure
) -> None:
    await drive(tmp_path, figure, talks=12, senders=6, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_fifty_kept_conversations_with_twenty_senders_each(tmp_path: Path, figure: Figure) -> None:
    await drive(tmp_path, figure, talks=50, senders=20, kills=8)
