"""Kept conversations on two replicas of one PostgreSQL: what was said to one goes on at the other, and a turn that runs
on one is busy, stopped and spoken into through the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.durability.asking import Reply
from tests.durability.process import Weir, running
from tests.durability.test_kill_kept import post
from tests.durability.test_postgres import Tables
from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.postgres import Cluster
from tests.scenarios.conftest import Figure

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
PATH = "/v1/conversations"


class Model:
    """Repeats the last message. One that says "wait" is answered when `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        said = request.messages[-1]["content"]
        if said == "wait":
            await reply.hang(self.release)
        counted = usage(20, 5)
        if request.stream:
            await reply.sse(chat_chunks(f"re: {said}", usage=counted))
        else:
            await reply.json(200, chat_reply(f"re: {said}", usage=counted))


class Pair:
    """Two replicas, and one conversation of them."""

    def __init__(self, up: ScriptedUpstream, tables: Tables, one: Weir, other: Weir, id: str, stream: bool) -> None:
        self.up = up
        self.tables = tables
        self.one = one
        self.other = other
        self.id = id
        self._stream = stream

    async def say(self, weir: Weir, text: str, *, into: bool = False) -> Reply:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": self._stream}
        request = post("/v1/chat/completions", {**body, "conversation": self.id})
        if into:
            request = request.replace(b"\r\n", b"\r\nx-weirgate-interject: true\r\n", 1)
        return await weir.ask(request)

    async def cancel(self, weir: Weir) -> int:
        return (await weir.ask(post(f"{PATH}/{self.id}/cancel", {}))).status

    async def said(self, weir: Weir) -> list[str]:
        """Every message of it, as that replica tells it."""
        listed = json.loads((await weir.get(f"{PATH}/{self.id}/items?order=asc&limit=100")).body)["data"]
        return [item["content"][0]["text"] for item in listed if item["type"] == "message"]

    async def waiting(self) -> asyncio.Task[Reply]:
        """A turn on the first replica whose model has been asked and does not answer yet."""
        asked = len(self.up.ledger)
        turn = asyncio.create_task(self.say(self.one, "wait"))
        await self.up.arrived(asked + 1)
        return turn


@contextlib.asynccontextmanager
async def pair(folder: Path, cluster: Cluster, model: Model, *, stream: bool) -> AsyncIterator[Pair]:
    name = folder.name[:60]
    url = cluster.create(name)
    folders = folder / "one", folder / "other"
    for each in folders:
        each.mkdir()
    async with (
        ScriptedUpstream(model) as up,
        running(up.url, folders[0], "--store", url) as one,
        running(up.url, folders[1], "--store", url) as other,
    ):
        made = await one.ask(post(PATH, {}))
        yield Pair(up, Tables(cluster, name), one, other, json.loads(made.body)["id"], stream)
    cluster.drop(name)


def told(request: SeenRequest) -> list[Any]:
    return [message["content"] for message in request.messages]


@both
async def test_a_conversation_goes_on_at_the_replica_that_is_left(
    stream: bool, tmp_path: Path, cluster: Cluster
) -> None:
    async with pair(tmp_path, cluster, Model(), stream=stream) as talk:
        assert (await talk.say(talk.one, "A")).text == "re: A"
        assert (await talk.say(talk.other, "B")).text == "re: B"
        assert told(talk.up.ledger[-1].request) == ["A", "re: A", "B"]
        await talk.one.stop()
        assert (await talk.say(talk.other, "C")).text == "re: C"
        assert await talk.said(talk.other) == ["A", "re: A", "B", "re: B", "C", "re: C"]


@both
async def test_a_turn_of_a_replica_that_leaves_ends_there_and_the_next_runs_at_the_other(
    stream: bool, tmp_path: Path, cluster: Cluster
) -> None:
    model = Model()
    async with pair(tmp_path, cluster, model, stream=stream) as talk:
        turn = await talk.waiting()
        talk.one.signal(signal.SIGTERM)
        busy = await talk.say(talk.other, "B")
        assert (busy.status, busy.code) == (409, "conversation_busy")
        model.release.set()
        assert (await turn).text == "re: wait"
        assert await talk.one.ended() == 0
        assert (await talk.say(talk.other, "B")).text == "re: B"
        assert await talk.said(talk.other) == ["wait", "re: wait", "B", "re: B"]


@both
async def test_a_turn_is_stopped_through_the_other_replica(
    stream: bool, tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    clock = asyncio.get_running_loop().time
    model = Model()
    async with pair(tmp_path, cluster, model, stream=stream) as talk:
        turn = await talk.waiting()
        began = clock()
        assert await talk.cancel(talk.other) == 200
        stopped = await turn
        took = clock() - began
        assert stopped.code == "turn_cancelled"
        async with asyncio.timeout(BOUND):
            await talk.up.ledger[-1].gone.wait()
        model.release.set()
        assert (await talk.say(talk.other, "B")).text == "re: B"
    figure("kept: seconds until a turn is stopped through the other replica", took, "<= 5")


@both
async def test_what_is_spoken_into_a_turn_through_the_other_replica_is_answered(
    stream: bool, tmp_path: Path, cluster: Cluster
) -> None:
    model = Model()
    async with pair(tmp_path, cluster, model, stream=stream) as talk:
        turn = await talk.waiting()
        into = asyncio.create_task(talk.say(talk.other, "B", into=True))
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(talk.tables.ask, "SELECT * FROM interjection"):
                pass
        model.release.set()
        assert (await turn).text == "re: wait"
        assert (await into).text == "re: B"
        assert await talk.said(talk.one) == await talk.said(talk.other) == ["wait", "re: wait", "B", "re: B"]
