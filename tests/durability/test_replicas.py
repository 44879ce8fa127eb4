"""Two replicas behind nginx on one PostgreSQL, restarted in turn while fifty conversations overflow, each of them asked
by twenty clients at once: nobody is refused, every upstream call has its one row, every span is compacted once.

A second round restarts the database itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.durability import balancing
from tests.durability.asking import Reply, chat
from tests.durability.balancing import Fleet
from tests.durability.test_postgres import Tables
from tests.fakes import ScriptedUpstream
from tests.postgres import Cluster
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Wire, user
from tests.scenarios.summarisers import GOOD, Provider, checking, saying

NO_NGINX = balancing.absent()
"""Says what to install; in CI it is an error instead."""
pytestmark = pytest.mark.skipif(NO_NGINX is not None, reason=NO_NGINX or "")

WINDOW = 4_096
TURNS, GROWS, LIVES = 11, 6, 3
"""A conversation overflows at once, and again with each of its further lives, which are so many turns longer."""


def full(reply: Reply | None) -> TypeGuard[Reply]:
    """Refused at once, because the machine has more to do than it can: what every SDK asks again by itself."""
    return reply is not None and reply.status == 429 and reply.headers["x-should-retry"] == "true"


class Crowd:
    """Conversations, each asked the same by several clients at once, until they are told that it is enough."""

    def __init__(self, fleet: Fleet, conversations: int, clients: int) -> None:
        self.fleet = fleet
        self.replies: dict[str, Reply | None] = {}
        self.ended: dict[str, float] = {}
        self.full = 0
        """How often a client was told to ask again in a moment, and did."""
        self.spans: set[tuple[str, int]] = set()
        self.enough = asyncio.Event()
        self._moved = asyncio.Event()
        self._clients = clients
        self._talks = [asyncio.create_task(self._talk(number)) for number in range(conversations)]

    async def gone(self) -> None:
        self.enough.set()
        await asyncio.gather(*self._talks)

    async def wait(self, seconds: float) -> None:
        """So long, or until a conversation breaks off."""
        await asyncio.wait(self._talks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def more(self, count: int) -> None:
        """Until so many more were answered."""
        wanted = len(self.replies) - len(self.failed()) + count
        async with asyncio.timeout(60):
            while len(self.replies) - len(self.failed()) < wanted:
                self._moved.clear()
                await self._moved.wait()

    async def _talk(self, number: int) -> None:
        life = 0
        while not self.enough.is_set():
            name, grown = f"conversation {number}-{life // LIVES}", life % LIVES
            said = [user(f"This is {name}."), *checking(TURNS + grown * GROWS)]
            self.spans.add((name, grown))
            await asyncio.gather(*(self._ask(said, f"{number}-{life}-{who}", who) for who in range(self._clients)))
            life += 1

    async def _ask(self, said: list[Wire], id: str, who: int) -> None:
        # Each client has a last request of his own, so all of them go separate ways from one branch.
        asked = [*said[:-1], user(f"{said[-1]['content']} I am client {who}.")]
        request = chat("scripted", asked, stream=who % 2 == 0, id=id)
        self.replies[id] = reply = await self._send(request)
        while full(reply):
            self.full += 1
            await asyncio.sleep(float(reply.headers["retry-after"]))
            self.replies[id] = reply = await self._send(request)
        self.ended[id] = asyncio.get_running_loop().time()
        self._moved.set()

    async def _send(self, request: bytes) -> Reply | None:
        try:
            return await self.fleet.ask(request)
        except (OSError, EOFError):
            return None

    def failed(self) -> list[str]:
        return [id for id, reply in self.replies.items() if reply is None or not reply.acknowledged]


async def in_turn(crowd: Crowd, rounds: int, pace: float) -> None:
    """Restart a replica, `pace` seconds later the next."""
    clock = asyncio.get_running_loop().time
    for number in range(rounds):
        began = clock()
        await crowd.fleet.replicas[number % len(crowd.fleet.replicas)].restart()
        await crowd.wait(max(0.0, began + pace - clock()))


def unaccounted(tables: Tables, up: ScriptedUpstream) -> int:
    """Upstream calls without their one closed row, and rows without their call."""
    called = Counter(entry.request.headers["x-request-id"] for entry in up.ledger)
    closed = Counter(row["request"] for row in tables.rows() if row["status"] == "ok")
    return (called - closed).total() + (closed - called).total()


async def restarted(
    folder: Path, server: Cluster, figure: Figure, *, conversations: int, clients: int, rounds: int, pace: float
) -> None:
    url, tables = server.create("rolling"), Tables(server, "rolling")
    provider = Provider(saying(GOOD), None)
    async with (
        ScriptedUpstream(provider) as up,
        Fleet(up.url, folder, url, "--window", str(WINDOW), server__drain_delay=1) as fleet,
    ):
        crowd = Crowd(fleet, conversations, clients)
        await in_turn(crowd, rounds, pace)
        await crowd.gone()
    codes = [code for replica in fleet.replicas for code in replica.codes]
    rows = tables.rows()
    stored = tables.ask("SELECT count(*) AS n, count(DISTINCT digest) AS spans FROM compaction")[0]
    failed = crowd.failed()
    print(
        "failed:",
        Counter((reply.status, reply.body[-300:]) if reply else None for reply in map(crowd.replies.get, failed)),
    )
    # So few at once are never too many.
    most_full = "== 0" if conversations * clients < 64 else f"<= {100 * len(crowd.replies)}"
    figure.all(
        ("rolling: replicas restarted", len(codes) - 2, f"== {rounds}"),
        ("rolling: of these not left cleanly", sum(code != 0 for code in codes), "== 0"),
        ("rolling: requests", len(crowd.replies), f">= {conversations * clients}"),
        ("rolling: failed requests", len(failed), "== 0"),
        ("rolling: asked again where the machine was full", crowd.full, most_full),
        ("rolling: upstream calls", len(up.ledger), f">= {conversations * clients}"),
        ("rolling: lost or double rows", unaccounted(tables, up), "== 0"),
        ("rolling: rows not closed", sum(row["status"] == "open" for row in rows), "== 0"),
        ("rolling: spans that overflowed", stored["spans"], f">= {conversations}"),
        ("rolling: summaries per branch and span", len(provider.summaries) / stored["spans"], "== 1"),
        ("rolling: compactions stored per branch and span", stored["n"] / stored["spans"], "== 1"),
        ("rolling: spans compacted beyond those that were asked", stored["spans"] - len(crowd.spans), "<= 0"),
        ("rolling: malformed prompts", len(provider.strict.violations), "== 0"),
    )


@pytest.mark.timeout(120)
async def test_replicas_restarted_in_turn_fail_nobody(tmp_path: Path, cluster: Cluster, figure: Figure) -> None:
    await restarted(tmp_path, cluster, figure, conversations=8, clients=4, rounds=2, pace=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_restart_every_twenty_seconds_for_two_minutes_fails_nobody(
    tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    await restarted(tmp_path, cluster, figure, conversations=50, clients=20, rounds=6, pace=20)


def honest(reply: Reply | None) -> bool:
    """Acknowledged, or refused because nothing can be stored: never half of an answer."""
    if reply is None:
        return False
    code = str(None if reply.acknowledged else reply.code)
    return reply.acknowledged or (reply.status in (200, 503) and code.startswith("storage_"))


async def test_a_restart_of_the_database_fails_nobody_before_or_after(
    tmp_path: Path, cluster: Cluster, figure: Figure
) -> None:
    url, tables = cluster.create("interrupted"), Tables(cluster, "interrupted")
    provider = Provider(saying(GOOD), None)
    clock = asyncio.get_running_loop().time
    async with (
        ScriptedUpstream(provider) as up,
        Fleet(up.url, tmp_path, url, "--window", str(WINDOW)) as fleet,
    ):
        crowd = Crowd(fleet, conversations=6, clients=3)
        await crowd.more(30)
        before, gone = len(crowd.failed()), clock()
        await asyncio.to_thread(cluster.stop)
        await asyncio.to_thread(cluster.start)
        accepts = clock()
        await crowd.more(30)
        recovered = clock()
        await crowd.gone()
    rows = [row for row in tables.rows() if row["purpose"] == "chat"]
    closed = Counter(row["request"] for row in rows if row["status"] == "ok")
    acknowledged = [id for id, reply in crowd.replies.items() if reply is not None and reply.acknowledged]
    last = max((crowd.ended[id] for id in crowd.failed()), default=gone)
    figure.all(
        ("database restarted: requests answered", len(acknowledged), ">= 60"),
        ("database restarted: failed before", before, "== 0"),
        ("database restarted: seconds it was gone", accepts - gone, "<= 60"),
        ("database restarted: refused meanwhile", len(crowd.failed()), ">= 1"),
        ("database restarted: answers other than 503", sum(not honest(r) for r in crowd.replies.values()), "== 0"),
        ("database restarted: seconds from its return to the last refusal", last - accepts, "<= 5"),
        ("database restarted: seconds until thirty more were answered", recovered - accepts, "<= 5"),
        ("database restarted: acknowledged without its one row", sum(closed[id] != 1 for id in acknowledged), "== 0"),
        ("database restarted: calls with two rows", sum(many > 1 for many in closed.values()), "== 0"),
    )
