"""Two replicas on one PostgreSQL: a day's budget is one for both, and a key that is stopped at one opens nothing at the
other within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from proxy.app import Application
from proxy.server.fence import Fence
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store.address import from_url
from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.postgres import Cluster
from tests.scenarios.conftest import Figure
from tests.server.wired import ADMIN, BUILT_IN, HELLO, bearer

SECRET = "client-secret-of-this-test"


async def hello(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(90, 10)))


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    yield cluster.create("limits")
    cluster.drop("limits")


@asynccontextmanager
async def replica(url: str, upstream: str, **limits: Any) -> AsyncIterator[httpx.AsyncClient]:
    given = {
        "policies": str(BUILT_IN),
        "upstreams.main.base_url": upstream,
        "keys": [{"id": "k", "tenant": "a", "secret": SECRET, "limits": limits}],
        "admin": {"secret": ADMIN},
    }
    app = Application(load(None, {}, given), Drain(), store=from_url(url))
    await app.start()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(Fence(app)), base_url="http://127.0.0.1") as client:
            yield client
    finally:
        await app.stop()


async def ask(client: httpx.AsyncClient) -> int:
    body = {**HELLO, "max_tokens": 10}
    return (await client.post("/v1/chat/completions", json=body, headers=bearer(SECRET))).status_code


async def until(client: httpx.AsyncClient, status: int) -> float:
    began = time.monotonic()
    async with asyncio.timeout(BOUND):
        while await ask(client) != status:
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def test_a_days_budget_is_one_for_all_replicas(database: str, figure: Figure) -> None:
    async with ScriptedUpstream(hello) as up:
        limits = {"tokens_per_day": 1000}
        async with replica(database, up.url, **limits) as one, replica(database, up.url, **limits) as other:
            assert [await ask(one) for _ in range(9)] == [200] * 9
            late = await until(other, 429)
            served = len(up.ledger)
            assert await until(one, 429) >= 0
        async with replica(database, up.url, **limits) as again:
            assert await ask(again) == 429
    figure.all(
        ("limits: calls of ten that were served, and what a second allows beyond", served, "<= 200"),
        ("limits: seconds until the other replica knows", late, "<= 3"),
    )


async def test_a_key_that_is_stopped_at_one_replica_opens_nothing_at_the_other(database: str, figure: Figure) -> None:
    async with ScriptedUpstream(hello) as up, replica(database, up.url) as one, replica(database, up.url) as other:
        assert (await ask(one), await ask(other)) == (200, 200)
        stop = {"limits": {"stopped": True}}
        assert (await one.patch("/v1/weirgate/keys/a/k", json=stop, headers=bearer(ADMIN))).status_code == 200
        assert await ask(one) == 403
        took = await until(other, 403)
        await other.patch("/v1/weirgate/keys/a/k", json={"limits": {"stopped": None}}, headers=bearer(ADMIN))
        assert await ask(other) == 200
        await until(one, 200)
    figure("limits: seconds until a stop holds at the other replica", took, "<= 3")
