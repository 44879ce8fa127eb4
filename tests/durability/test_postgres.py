"""T-02, T-43: `kill -9` and a restart of the database under two gateways on one PostgreSQL: what was acknowledged is
there, once, and what was cut off is closed as `unknown` by those who live.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.durability import test_kill
from tests.durability.asking import Reply, chat
from tests.durability.process import Row, Weir, running
from tests.durability.test_broken_store import Patient, begun, end
from tests.durability.test_kill import Lane, judge
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.postgres import Cluster
from tests.scenarios.conftest import Figure

CALLERS = 10


class Tables:
    """A database of the server's, read without a gateway."""

    def __init__(self, server: Cluster, name: str) -> None:
        self._server = server
        self._name = name

    def ask(self, sql: str) -> list[Row]:
        found = self._server.say(f"SELECT coalesce(json_agg(found), '[]') FROM ({sql}) found", self._name)
        rows: list[Row] = json.loads(found)
        return rows

    def rows(self) -> list[Row]:
        return self.ask("SELECT * FROM usage ORDER BY opened_at")

    def sound(self) -> bool:
        return True  # the server checks its own log of writes when it starts

    def bury(self) -> None:
        """As if all processes had been silent for long."""
        self._server.say("UPDATE instance SET seen_at = 0", self._name)


class OnPostgres(Lane):
    """A lane of the kill test whose gateway keeps everything in PostgreSQL."""

    tables: Tables
    url: str

    def running(self) -> contextlib.AbstractAsyncContextManager[Weir]:
        window = str(test_kill.WINDOW)
        return running(self.up.url, self.folder, "--window", window, "--store", self.url, usage__strict=self.strict)

    def examine(self) -> None:
        self.open |= {row["id"] for row in self.tables.rows() if row["status"] == "open"}


@pytest.mark.timeout(120)
async def test_kills_under_load_lose_nothing_that_was_acknowledged(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr(test_kill, "KILLS", 2)
    lane = OnPostgres(tmp_path, strict=True)
    lane.url, lane.tables = cluster.create("killed"), Tables(cluster, "killed")
    await lane.live()
    lane.tables.bury()
    async with lane.up, lane.running():
        pass  # whoever starts next closes what the dead left
    figures = judge(lane, lane.tables)  # type: ignore[arg-type] # it is read, however it is kept
    figure.all(
        ("02 acknowledged", figures["acknowledged"], ">= 40"),
        ("02 acknowledged without exactly one row closed ok", figures["lost"], "<= 0"),
        ("02 rows a kill left open", figures["left open"], ">= 6"),
        ("02 of these not closed as unknown", figures["not unknown"], "<= 0"),
        ("02 rows open at the end", figures["open"], "<= 0"),
        ("02 strict: upstream calls without a row", figures["without a row"], "<= 0"),
        ("02 announced and not stored", figures["compaction lost"], "<= 0"),
    )


async def whole(request: SeenRequest, reply: Script) -> None:
    if not request.stream:
        await reply.json(200, chat_reply("Whole.", usage=usage(9, 1)))
        return
    await reply.head(200, {"content-type": "text/event-stream"})
    for chunk in chat_chunks("Whole.", usage=usage(9, 1)):
        await reply.event(chunk)
    await reply.event(b"[DONE]")
    await reply.end()


class Callers:
    """Calls without a pause, at two replicas in turn."""

    def __init__(self, weirs: tuple[Weir, Weir]) -> None:
        self.weirs = weirs
        self.replies: dict[str, Reply] = {}
        self.ending = False

    async def call(self, who: int) -> None:
        number = 0
        while not self.ending:
            number += 1
            id = f"{who}-{number}"
            stream = number % 2 == 0
            self.replies[id] = await self.weirs[number % 2].ask(chat("m", f"Hello {id}", stream=stream, id=id))

    def acknowledged(self) -> list[str]:
        return [id for id, reply in self.replies.items() if reply.acknowledged]

    async def until(self, more: int, *, good: bool) -> float:
        """Seconds until so many more calls have ended well, or were refused."""

        def count() -> int:
            return sum(reply.acknowledged is good for reply in self.replies.values())

        clock = asyncio.get_running_loop().time
        began, wanted = clock(), count() + more
        async with asyncio.timeout(30):
            while count() < wanted:
                await asyncio.sleep(0)
        return clock() - began


def honest(reply: Reply) -> bool:
    """Acknowledged, or refused with 503 or an error at the end of the stream: never half of an answer."""
    code: Any = None if reply.acknowledged else reply.code
    return reply.acknowledged or (reply.status in (200, 503) and str(code).startswith("storage_"))


@pytest.mark.timeout(120)
async def test_a_restart_of_the_database_under_two_replicas_is_over_by_itself(
    tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    url, tables = cluster.create("restarted"), Tables(cluster, "restarted")
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    async with (
        ScriptedUpstream(whole) as up,
        running(up.url, one, "--store", url) as first,
        running(up.url, other, "--store", url) as second,
    ):
        callers = Callers((first, second))
        calls = [asyncio.create_task(callers.call(who)) for who in range(CALLERS)]
        await callers.until(50, good=True)
        await asyncio.to_thread(cluster.stop, signal.SIGQUIT)
        await callers.until(2 * CALLERS, good=False)
        alive = await first.get("/healthz")
        ready = await first.get("/readyz")
        await asyncio.to_thread(cluster.start)
        recovered = await callers.until(50, good=True)
        callers.ending = True
        await asyncio.gather(*calls)
    rows: dict[str, list[Row]] = {}
    for row in tables.rows():
        rows.setdefault(row["request"], []).append(row)
    kept = [id for id in callers.acknowledged() if [row["status"] for row in rows.get(id, ())] == ["ok"]]
    called = {entry.request.headers["x-request-id"] for entry in up.ledger}
    figure.all(
        ("43 acknowledged without exactly one row closed ok", len(callers.acknowledged()) - len(kept), "<= 0"),
        (
            "43 answers that looked whole and were not, or other errors",
            sum(not honest(r) for r in callers.replies.values()),
            "<= 0",
        ),
        ("43 /healthz meanwhile", alive.status, "== 200"),
        ("43 /readyz meanwhile", ready.status, "== 503"),
        ("43 seconds until fifty calls were served again", recovered, "<= 5"),
        ("43 upstream calls without a row", len(called - rows.keys()), "<= 0"),
        ("43 calls with two rows", sum(len(found) > 1 for found in rows.values()), "<= 0"),
    )


ADMIN = "wg-admin-secret-of-the-test"


async def operate(weir: Weir, path: str, body: dict[str, Any]) -> Any:
    """An operator's request, and what it was answered with."""
    told = json.dumps(body).encode()
    head = f"POST /v1/weirgate/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ADMIN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(told)}\r\nConnection: close\r\n\r\n"
    reply = await weir.ask(head.encode() + told)
    assert reply.status in (200, 201), reply.body
    return json.loads(reply.body)


async def until(weir: Weir, key: str, status: int) -> float:
    """Seconds until the key is answered with that status."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(30):
        while (await weir.ask(chat("m", "Hello", stream=False, id="r", key=key))).status != status:
            pass
    return clock() - began


async def test_a_key_that_one_replica_revokes_opens_nothing_on_the_other(
    tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    url, told = cluster.create("revoked"), {"admin__secret": ADMIN}
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    async with (
        ScriptedUpstream(whole) as up,
        running(up.url, one, "--store", url, **told) as first,
        running(up.url, other, "--store", url, **told) as second,
    ):
        made = await operate(first, "keys", {"tenant": "t", "id": "k"})
        opened = await until(second, made["secret"], 200)
        await operate(first, "keys/t/k/revoke", {})
        closed = await until(second, made["secret"], 401)
        at_once = (await first.ask(chat("m", "Hello", stream=False, id="r", key=made["secret"]))).status
    figure.all(
        ("44 seconds until a new key opens the other replica", opened, "<= 1"),
        ("44 seconds until a revoked key opens nothing there", closed, "<= 1"),
        ("44 and where it was revoked", at_once, "== 401"),
    )


async def test_no_connection_is_held_while_a_provider_is_waited_for(
    tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    url, patient = cluster.create("held"), Patient()
    async with ScriptedUpstream(patient) as up, running(up.url, tmp_path, "--store", url, store__connections=1) as weir:
        lines = await asyncio.gather(*(begun(weir, f"slow-{number}") for number in range(CALLERS)))
        answered = await weir.ask(chat("fast", "Hello", stream=True, id="fast"))
        patient.release.set()
        ended = await asyncio.gather(*map(end, lines))
    figure.all(
        ("45 answered over one connection while ten calls hang", answered.acknowledged, "== 1"),
        ("45 of the ten, that ended whole", sum(reply.acknowledged for reply in ended), f"== {CALLERS}"),
    )
