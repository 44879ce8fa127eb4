"""Modes, and calls without a conversation: passed on, and accounted for like any other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.core.errors import (
    InvalidReply,
    KeyRefused,
    StoreUnavailable,
    Unreachable,
)
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.steps import Caller
from proxy.core.usage import UsageRow
from proxy.dialects.embeddings import read_embeddings_usage
from proxy.passing import pass_on as passed_on
from proxy.upstream import Request
from tests import edges
from tests.driving import USAGE, House, Housed, chat, closed_once, to
from tests.edges import Provider, failing, whole
from tests.playbook import changed

ROW = UsageRow(
    id="use_e", request="r", tenant="t", key="k", upstream="main", asked_model="e", model="e", opened_at=1.0,
    purpose="embeddings",
)  # fmt: skip


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "asked", "mode"),
    [
        (Mode.ENFORCE, None, Mode.ENFORCE),
        (Mode.ENFORCE, "observe", Mode.OBSERVE),
        (Mode.ENFORCE, "off", Mode.OFF),
        (Mode.OBSERVE, "enforce", Mode.OBSERVE),
        (Mode.OFF, "enforce", Mode.OFF),
    ],
)
async def test_a_request_may_ask_for_less_than_the_operator_and_its_row_says_so(
    house: House, operator: Mode, asked: str | None, mode: Mode
) -> None:
    headers = {} if asked is None else {"x-weirgate-mode": asked}
    call = chat(headers=headers)
    policy = Policy(mode=operator, window=4000)
    assert house.gateway.snapshots.of(call, to(Provider(whole()), policy=policy)).mode is mode
    await house.serve(call, Provider(whole()), policy=policy)
    assert [row.mode for row in await house.rows()] == [str(mode)]


async def test_observe_sends_the_clients_messages_whatever_their_size(house: House) -> None:
    provider = Provider(whole("x"))
    call = chat(60)
    served = await house.serve(call, provider, policy=Policy(mode=Mode.OBSERVE, window=4000))
    assert provider.bodies()[0]["messages"] == json.loads(call.body)["messages"]
    assert served.outcome.report.compaction == "auto"


async def test_callers_have_scopes_of_their_own(house: House) -> None:
    scopes = {
        house.gateway.snapshots.of(call, to(Provider(whole()))).scope
        for call in (chat(), chat(tenant="u"), chat(user="a"), chat(user="b"), chat(tenant="u", user="a"))
    }
    assert len(scopes) == 5


async def test_the_scopes_of_many_callers_are_remembered_within_a_bound(house: House) -> None:
    snapshots = house.gateway.snapshots
    first = snapshots.scope_of(Caller(tenant="t", key="k"))
    scopes = {snapshots.scope_of(Caller(tenant="t", key="k", end_user=str(number))) for number in range(5000)}
    assert len(scopes) == 5000
    assert len(snapshots._scopes) < 5000
    assert snapshots.scope_of(Caller(tenant="t", key="k")) == first


# -- calls without a conversation --------------------------------------------------------------------------------------

EMBEDDINGS = Request(path="/embeddings", body=b"{}")
EMBEDDED = b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}'


async def pass_on(house: House, *answers: Any) -> bytes:
    async with asyncio.timeout(edges.BOUND):
        return await passed_on(house.gateway, EMBEDDINGS, to(Provider(*answers)), ROW, read_embeddings_usage)


async def test_embeddings_are_passed_on_and_accounted_for(house: House) -> None:
    answer = edges.Answer(EMBEDDED)
    assert await pass_on(house, answer) == EMBEDDED
    (row,) = await house.store.rows()
    assert (row.status, row.input, row.cost, row.estimated, row.http_status) == ("ok", 7, 7, False, 200)
    assert answer.closed == 1
    assert house.count("weirgate_upstream_calls_total", upstream="main", purpose="embeddings", status="ok") == 1


@pytest.mark.parametrize(
    ("answer", "kind", "code", "http"),
    [
        (failing(401), KeyRefused, "upstream_auth_failed", 401),
        (edges.Answer(b"<html>"), InvalidReply, "upstream_invalid_response", 200),
        (failing(200), InvalidReply, "upstream_invalid_response", 200),
        (edges.Answer(b"{", InvalidReply("reset")), InvalidReply, "upstream_invalid_response", 200),
        (Unreachable("refused", sent=False), Unreachable, "upstream_unreachable", None),
        (ZeroDivisionError(), ZeroDivisionError, None, None),
    ],
)
async def test_embeddings_that_fail_leave_a_row_that_says_why(
    house: House, answer: Any, kind: type[Exception], code: str | None, http: int | None
) -> None:
    with pytest.raises(kind):
        await pass_on(house, answer)
    (row,) = await house.rows()
    assert (row.status, row.error, row.http_status, row.input) == ("failed", code, http, 0)
    closed_once(house)


async def test_embeddings_that_are_cancelled_leave_a_row_that_says_so(house: House) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    answer = edges.Answer(hang)
    task = asyncio.create_task(pass_on(house, answer))
    async with asyncio.timeout(edges.BOUND):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [row.status for row in await house.rows()] == ["cancelled"]
    assert answer.closed == 1


@pytest.mark.parametrize("verb", ["open_row", "close_row"])
@pytest.mark.parametrize("required", [True, False])
async def test_embeddings_need_the_store_where_it_is_required(housed: Housed, verb: str, required: bool) -> None:
    async with housed(store_required=required) as house:
        house.store.down = {verb}
        if required:
            with pytest.raises(StoreUnavailable):
                await pass_on(house, edges.Answer(EMBEDDED))
        else:
            assert await pass_on(house, edges.Answer(EMBEDDED)) == EMBEDDED
        assert house.count("weirgate_unremembered_calls_total") == (0 if required else 1)
        assert house.count("weirgate_store_failures_total") == 1


async def test_a_card_without_a_price_says_so(house: House) -> None:
    provider = Provider(whole("x", usage=USAGE))
    destination = to(provider)
    free = changed(destination, target=changed(destination.target, card=ModelCard(name="real")))
    await house.gateway.serve(chat(), free, house.reader, "r", None)
    (row,) = await house.rows()
    assert (row.cost, row.unpriced) == (None, True)
