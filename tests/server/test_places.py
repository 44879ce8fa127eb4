"""A place among the requests served at once, and the limits of the key that asks: end to end over the application."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from proxy.core.errors import Busy
from proxy.core.quota import DAY
from proxy.core.steps import Caller
from proxy.counted import Count
from proxy.server.desk import Desk
from proxy.server.overload import Overload
from proxy.server.places import Place
from tests.fakes import BOUND, Script, SeenRequest, chat_chunks, chat_reply, usage
from tests.server.wired import ADMIN, HELLO, Wired, bearer, chat, wired

if TYPE_CHECKING:
    from proxy.server.stream import Answering

CHAT = "/v1/chat/completions"
KEYS = "/v1/weirgate/keys"
SECRET, OTHER = "client-secret-of-this-test", "another-secret-of-this-test"


def keyed(**limits: Any) -> dict[str, Any]:
    """A key with these limits, one without, and a tenant that has nothing to do with it."""
    keys = [
        {"id": "k", "tenant": "a", "secret": SECRET, "limits": limits},
        {"id": "free", "tenant": "a", "secret": OTHER},
    ]
    return {"keys": keys, "admin": {"secret": ADMIN}}


async def hello(request: SeenRequest, reply: Script) -> None:
    if request.stream:
        await reply.sse(chat_chunks("Hello.", usage=usage(900, 100)))
    else:
        await reply.json(200, chat_reply("Hello.", usage=usage(900, 100)))


async def ask(weir: Wired, secret: str = SECRET, **more: Any) -> httpx.Response:
    return await weir.client.post(CHAT, json={"max_tokens": 100, **HELLO, **more}, headers=bearer(secret))


def refused(got: httpx.Response) -> tuple[int, str, str, str | None]:
    error = got.json()["error"]
    return got.status_code, error["type"], error["code"], got.headers.get("x-should-retry")


LIMITED = (429, "rate_limit_error", "rate_limit_exceeded", "true")


async def test_places_are_counted_for_the_process_and_for_each_key_and_leave_nothing_behind() -> None:
    overload = Overload(3, Count())
    gateway = SimpleNamespace(metering=SimpleNamespace(meters={}, seen=set()))
    desk = cast("Desk", SimpleNamespace(running={}, overload=overload, streams_per_key=2, gateway=gateway))
    answering = cast("Answering", SimpleNamespace(request_id="r", limits=()))
    one, other = Caller(tenant="t", key="1"), Caller(tenant="t", key="2")
    with Place(desk, one, answering), Place(desk, one, answering):
        with pytest.raises(Busy):
            Place(desk, one, answering)
        with Place(desk, other, answering), pytest.raises(Busy):
            Place(desk, Caller(tenant="t", key="3"), answering)
    assert desk.running == {} and overload.serving == 0


# -- each limit ------------------------------------------------------------------------------------------------------


async def test_requests_a_minute_are_counted_shown_and_refused_with_the_time_to_wait() -> None:
    async with wired(hello, **keyed(requests_per_minute=2)) as weir:
        first, second, third = [await ask(weir) for _ in range(3)]
        assert (await ask(weir, OTHER)).status_code == 200
        assert len(weir.up.ledger) == 3
    assert [got.headers["x-ratelimit-remaining-requests"] for got in (first, second, third)] == ["1", "0", "0"]
    assert {got.headers["x-ratelimit-limit-requests"] for got in (first, second, third)} == {"2"}
    assert refused(third) == LIMITED and 1 <= int(third.headers["retry-after"]) <= 61
    assert third.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_a_key_without_limits_gets_no_headers_of_them_and_is_counted_nowhere() -> None:
    async with wired(hello, **keyed(requests_per_minute=2)) as weir:
        got = await ask(weir, OTHER)
        assert weir.app._gateway is not None
        assert set(weir.app._gateway.metering.meters) == {("a", "k")}
    assert not [name for name in got.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_a_minute_are_those_that_the_provider_reports(stream: bool) -> None:
    async with wired(hello, **keyed(tokens_per_minute=2100)) as weir:
        # Two calls use 1,000 each; a third one would need at least the 100 it may be answered with.
        first, second, third = [await ask(weir, stream=stream) for _ in range(3)]
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 2100
    assert first.status_code == second.status_code == 200
    assert refused(third) == LIMITED and third.headers["x-ratelimit-remaining-tokens"] == "100"


async def test_a_days_tokens_and_requests_are_those_of_the_rows_and_survive_a_restart() -> None:
    async with wired(hello, **keyed(tokens_per_day=2050, requests_per_day=5)) as weir:
        assert [(await ask(weir)).status_code for _ in range(2)] == [200, 200]
        third = await ask(weir)
        assert third.status_code == 429 and third.headers["x-should-retry"] == "false"
        assert 0 < int(third.headers["retry-after"]) <= DAY
        gateway = weir.app._gateway
        assert gateway is not None
        gateway.metering.meters = {}  # as a new process, which knows what is stored
        await weir.app.read_keys()
        again = await ask(weir)
        assert refused(again) == (429, "rate_limit_error", "rate_limit_exceeded", "false")
        assert gateway.metering.meters["a", "k"].today.tokens == 2000
        assert gateway.metering.meters["a", "k"].today.requests == 2


async def test_a_spent_budget_is_insufficient_quota_and_not_worth_a_retry() -> None:
    # gpt-4o-mini: 0.15 and 0.60 dollars a million, so 195 millionths a call.
    async with wired(hello, **keyed(cost_per_day=0.0004)) as weir:
        for _ in range(2):
            assert (await ask(weir, model="gpt-4o-mini")).status_code == 200
        third = await ask(weir, model="gpt-4o-mini")
        row = (await weir.rows())[0]
    assert row.cost == 900 * 150 + 100 * 600
    assert refused(third) == (429, "insufficient_quota", "insufficient_quota", "false")


async def test_a_burst_holds_what_it_may_cost_so_that_it_cannot_run_over() -> None:
    release = asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.hang(release)
        await reply.json(200, chat_reply("Hello.", usage=usage(5, 100)))

    async with wired(slow, **keyed(tokens_per_day=1000)) as weir:
        burst = [asyncio.create_task(ask(weir)) for _ in range(40)]
        async with asyncio.timeout(BOUND):
            while sum(task.done() for task in burst) + len(weir.up.ledger) < len(burst):
                await asyncio.sleep(0)
        release.set()
        answers = [await task for task in burst]
        rows = await weir.settled()
    assert sum(row.input + row.output for row in rows) <= 1000
    served = [got for got in answers if got.status_code == 200]
    assert 5 <= len(served) == len(rows) < 40
    assert {refused(got) for got in answers if got.status_code != 200} == {LIMITED}


async def test_requests_at_once_are_the_keys_own_bound() -> None:
    async def waiting(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(waiting, server__limits__streams_per_key=1, **keyed(streams=3)) as weir:
        running = [chat(weir.app, HELLO, **bearer(SECRET)) for _ in range(3)]
        await weir.up.arrived(3)
        assert refused(await ask(weir)) == LIMITED
        for each in running:
            each.leave()
            await each.done()
        gateway = weir.app._gateway
        assert gateway is not None and gateway.metering.meters["a", "k"].running == 0


# -- where limits come from ------------------------------------------------------------------------------------------


async def test_a_limit_of_all_keys_holds_where_a_key_states_none() -> None:
    given = {**keyed(requests_per_minute=2), "key_limits": {"requests_per_minute": 1}}
    async with wired(hello, **given) as weir:
        assert [(await ask(weir)).status_code for _ in range(3)] == [200, 200, 429]
        assert [(await ask(weir, OTHER)).status_code for _ in range(2)] == [200, 429]


async def test_an_embedding_counts_like_any_other_request() -> None:
    async def vector(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, {"object": "list", "data": [], "usage": {"prompt_tokens": 30, "total_tokens": 30}})

    async with wired(vector, **keyed(requests_per_day=2, tokens_per_day=100)) as weir:
        body = {"model": "known", "input": "A weir."}
        answers = [await weir.client.post("/v1/embeddings", json=body, headers=bearer(SECRET)) for _ in range(3)]
        large = {**body, "input": "A weir. " * 100}
        assert [got.status_code for got in answers] == [200, 200, 429]
        await weir.client.patch(f"{KEYS}/a/k", json={"limits": {"requests_per_day": 9}}, headers=bearer(ADMIN))
        assert refused(await weir.client.post("/v1/embeddings", json=large, headers=bearer(SECRET)))[0] == 429
    assert answers[1].headers["x-ratelimit-remaining-tokens"] != answers[0].headers["x-ratelimit-remaining-tokens"]


async def test_a_refused_request_is_not_read_and_leaves_no_row() -> None:
    async with wired(hello, **keyed(requests_per_minute=0)) as weir:
        got = await weir.client.post(CHAT, content=b"no JSON", headers={**bearer(SECRET), "content-type": "text/plain"})
        assert refused(got) == (429, "rate_limit_error", "rate_limit_exceeded", "false")
        assert await weir.rows() == [] and weir.up.ledger == []


async def test_a_request_that_reached_no_provider_counts_for_no_day() -> None:
    async with wired(hello, **keyed(requests_per_day=1)) as weir:
        got = await weir.client.post(CHAT, json={"model": "known", "messages": "no list"}, headers=bearer(SECRET))
        assert got.status_code == 400
        assert (await ask(weir)).status_code == 200
        assert (await ask(weir)).status_code == 429
