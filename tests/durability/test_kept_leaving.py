"""Turns of kept conversations in a real process: a client that stops reading, SIGTERM while they run, and an end that
cannot wait. A turn whose client is gone finishes; one that must stop keeps what it wrote.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.durability.asking import Line
from tests.durability.process import Weir, database, running, usage_rows
from tests.durability.test_drain import Slow
from tests.durability.test_kill_kept import post
from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest, chat_chunks, usage

WORDS = "water " * 500_000
"""More than the kernel and we hold for a client that does not read."""


async def long(request: SeenRequest, reply: Script) -> None:
    await reply.sse(chat_chunks(WORDS, usage=usage(20, 5), size=64_000))


async def begun(weir: Weir, *, receive: int | None = None, reads: bool = True) -> Line:
    """A streamed turn of a new conversation."""
    made = await weir.ask(post("/v1/conversations", {}))
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Go on."}],
        "stream": True,
        "conversation": json.loads(made.body)["id"],
    }
    line = await weir.connect(receive=receive)
    if not reads:
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await line.send(post("/v1/chat/completions", body))
    if reads:
        assert (await line.head())[0] == 200
        assert await line.piece()
    return line


async def states(weir: Weir) -> set[str]:
    """How the conversations of the process stand."""
    listed = json.loads((await weir.get("/v1/conversations")).body)["data"]
    found = [await weir.get(f"/v1/conversations/{each['id']}") for each in listed]
    return {json.loads(reply.body)["weirgate"]["state"] for reply in found}


def answers(file: Path) -> list[dict[str, Any]]:
    """What is known of every answer in `file`, with its message."""
    with database(file, "end") as found:
        rows = found.ask("SELECT wire, payload FROM owned_item ORDER BY id")
        runs = found.ask("SELECT run FROM owned WHERE run IS NOT NULL")
    assert runs == []
    items = [{**json.loads(row["payload"]), "wire": json.loads(row["wire"])} for row in rows]
    return [item for item in items if item["role"] == "assistant"]


@pytest.mark.timeout(60)
async def test_a_client_that_stops_reading_costs_the_conversation_nothing(tmp_path: Path) -> None:
    async with ScriptedUpstream(long) as up, running(up.url, tmp_path, server__limits__write_idle=1.0) as weir:
        with await begun(weir, receive=4096, reads=False):
            await up.arrived(1)
            async with asyncio.timeout(BOUND):
                while "idle" not in await states(weir):
                    pass
        assert await weir.stop() == 0
    (answer,) = answers(weir.file)
    assert (answer["wire"]["content"], answer["finish"], answer.get("status")) == (WORDS, "stop", None)
    assert [row["status"] for row in usage_rows(weir.file)] == ["ok"]


@pytest.mark.timeout(60)
async def test_turns_whose_clients_left_finish_after_sigterm(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with ScriptedUpstream(Slow(release)) as up, running(up.url, tmp_path) as weir:
        lines = [await begun(weir) for _ in range(5)]
        for line in lines:
            line.leave()
        weir.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(0.5, release.set)
        assert await weir.ended() == 0
    assert [answer["wire"]["content"] for answer in answers(weir.file)] == [
        "A weir keeps a river from overflowing."
    ] * 5
    assert [row["status"] for row in usage_rows(weir.file)] == ["ok"] * 5


@pytest.mark.timeout(60)
async def test_turns_that_must_end_keep_what_they_wrote(tmp_path: Path) -> None:
    async with ScriptedUpstream(Slow()) as up, running(up.url, tmp_path, server__drain=0.2) as weir:
        left, stays = await begun(weir), await begun(weir)
        left.leave()
        weir.signal(signal.SIGTERM)
        with stays:
            rest = await stays.rest()
        assert b"shutting_down" in rest and b"[DONE]" not in rest
        assert await weir.ended() == 1
    kept = answers(weir.file)
    assert [answer["status"] for answer in kept] == ["incomplete"] * 2
    assert all(answer["wire"]["content"].startswith("A weir") for answer in kept)
    assert {row["status"] for row in usage_rows(weir.file)} == {"cancelled"}
