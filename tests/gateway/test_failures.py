"""What fails is cured, repeated or told, and always accounted for; nothing is acknowledged that is not kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.core.errors import (
    InvalidReply,
    KeyRefused,
    Overloaded,
    RateLimited,
    StoreUnavailable,
    TimedOut,
    TooLong,
    Unreachable,
    WindowExceeded,
)
from proxy.core.policy import Mode, Policy
from proxy.core.steps import Limits
from proxy.core.usage import UsageRow
from proxy.retries import RetryBudget
from proxy.upstream import Request
from tests import edges
from tests.driving import OVERFLOW, USAGE, House, Housed, chat, closed_once
from tests.edges import Provider, events, failing, stream, streamed, whole
from tests.replies import chat_chunks

# -- overflow ----------------------------------------------------------------------------------------------------------


async def test_an_overflow_is_cured_and_each_call_has_its_row(house: House) -> None:
    provider = Provider(failing(400, OVERFLOW), whole("x", usage=USAGE))
    served = await house.serve(chat(30), provider, window=100_000)
    assert served.outcome.recoveries == 1
    first, second = await house.rows()
    assert (first.status, first.purpose, first.error, first.parent) == (
        "failed",
        "chat",
        "context_length_exceeded",
        None,
    )
    assert (second.status, second.purpose, second.parent, second.compaction) == (
        "ok",
        "recovery",
        first.id,
        "recovered",
    )
    assert len(provider.requests[1].body) < len(provider.requests[0].body)
    assert house.count("weirgate_overflows_total", model="other", outcome="recovered") == 1
    assert house.count("weirgate_overflows_total", model="other", outcome="reached_client") == 0
    (entry,) = await house.store.calibrations()
    assert entry.limits == Limits(total=1500, source="learned")
    closed_once(house)


async def test_an_overflow_that_cannot_be_cured_reaches_the_client_and_every_row_is_closed(house: House) -> None:
    with pytest.raises(WindowExceeded):
        await house.serve(chat(30), Provider(failing(400, OVERFLOW)), window=100_000)
    rows = await house.rows()
    assert 1 < len(rows) <= 4
    assert {row.status for row in rows} == {"failed"}
    assert house.count("weirgate_overflows_total", model="other", outcome="reached_client") == 1
    closed_once(house)


async def test_in_mode_off_an_overflow_is_passed_on_and_counted(house: House) -> None:
    with pytest.raises(TooLong):
        await house.serve(chat(), Provider(failing(400, OVERFLOW)), policy=Policy(mode=Mode.OFF))
    assert house.store.verbs("recall", "remember", "claim") == []
    assert [row.mode for row in await house.rows()] == ["off"]
    assert house.count("weirgate_overflows_total", model="other", outcome="reached_client") == 1


async def test_an_overflow_in_the_middle_of_a_stream_is_not_recovered(house: House) -> None:
    role, text, *_ = chat_chunks("hello")
    broken = stream(events(role, text), events({"error": {"message": OVERFLOW}}))
    with pytest.raises(WindowExceeded):
        await house.serve(chat(stream=True), Provider(broken))
    assert [row.status for row in await house.rows()] == ["partial"]


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [failing(503), failing(429, headers={"retry-after": "0"}), failing(529), Unreachable("refused", sent=False)],
)
async def test_what_nobody_worked_on_is_repeated_once_with_a_row_of_its_own(house: House, fault: Any) -> None:
    served = await house.serve(chat(stream=True), Provider(fault, streamed("x")))
    assert served.rest
    first, second = await house.rows()
    assert (first.status, first.purpose) == ("failed", "chat")
    assert (second.status, second.purpose, second.parent) == ("ok", "retry", first.id)
    closed_once(house)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TimedOut("idle"), TimedOut),
        (Unreachable("reset", sent=True), Unreachable),
        (failing(500), Exception),
        (failing(401), KeyRefused),
        (failing(429, headers={"retry-after": "60"}), RateLimited),
        (stream(events({"error": {"message": "x"}})), InvalidReply),
    ],
)
async def test_what_may_have_been_billed_or_wants_much_patience_is_not_repeated(
    house: House, fault: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await house.serve(chat(stream=True), Provider(fault, streamed("x")))
    assert len(await house.rows()) == 1


async def test_nothing_is_repeated_after_the_client_has_read_something(house: House) -> None:
    role, text, *_ = chat_chunks("hello")
    broken = stream(events(role, text), events({"error": {"message": "x", "code": 503}}))
    with pytest.raises(InvalidReply):
        await house.serve(chat(stream=True), Provider(broken, streamed("x")))
    assert [row.status for row in await house.rows()] == ["partial"]


async def test_a_second_failure_is_the_clients(house: House) -> None:
    with pytest.raises(Overloaded):
        await house.serve(chat(), Provider(failing(503)))
    assert len(await house.rows()) == 2


async def test_one_attempt_means_one(house: House) -> None:
    with pytest.raises(Overloaded):
        await house.serve(chat(), Provider(failing(503)), attempts=1)
    assert len(await house.rows()) == 1


async def test_a_failing_provider_is_not_flooded(house: House) -> None:
    provider = Provider(failing(503, headers={"retry-after": "0"}))
    for _ in range(40):
        with pytest.raises(Overloaded):
            await house.serve(chat(), provider, budget=0.2)
    # The whole share, and no more: a repeat that was not made is not counted.
    assert 40 + 3 + 0.2 * 40 - 2 <= len(provider.requests) <= 40 + 3 + 0.2 * 40 + 1


def test_the_retry_budget_is_a_share_of_the_calls() -> None:
    budget = RetryBudget()
    assert [budget.allow(0.0) for _ in range(5)] == [True, True, True, False, False]
    for _ in range(100):
        budget.call()
    allowed = sum(budget.allow(0.2) for _ in range(100))
    assert 15 <= allowed <= 24


# -- the store is away -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["recall", "open_row"])
async def test_without_a_store_no_call_is_made(house: House, verb: str) -> None:
    house.store.down = {verb}
    provider = Provider(whole())
    with pytest.raises(StoreUnavailable):
        await house.serve(chat(), provider)
    assert provider.requests == []


async def test_with_strict_usage_a_row_that_is_not_durable_prevents_the_call_and_is_closed(housed: Housed) -> None:
    async with housed(strict_usage=True) as house:
        house.store.down = {"opened"}
        provider = Provider(whole())
        with pytest.raises(StoreUnavailable):
            await house.serve(chat(), provider)
        assert provider.requests == []
        assert [(row.status, row.input) for row in await house.rows()] == [("failed", 0)]
        closed_once(house)


async def test_with_strict_usage_the_row_is_in_the_database_before_the_call(housed: Housed) -> None:
    async with housed(strict_usage=True) as house:
        seen: list[str] = []

        async def look(request: Request) -> edges.Answer:
            seen.extend(row.status for row in await house.store.rows())
            return whole()

        await house.serve(chat(), Provider(look))
        assert seen == ["open"]
        assert [row.status for row in await house.rows()] == ["ok"]


@pytest.mark.parametrize("verb", ["close_row", "remember"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_what_could_not_be_stored_is_not_acknowledged(house: House, verb: str, streaming: bool) -> None:
    house.store.down = {verb}
    provider = Provider(streamed("hello") if streaming else whole("hello"))
    with pytest.raises(StoreUnavailable):
        await house.serve(chat(stream=streaming), provider)
    assert b"[DONE]" not in b"".join(house.reader.read)


@pytest.mark.parametrize(
    "down",
    [
        {"recall"},
        {"open_row", "close_row"},
        {"opened"},
        {"close_row"},
        {"remember"},
        {"claim", "release"},
        {"recall", "remember", "claim", "release", "open_row", "opened", "close_row"},
    ],
)
async def test_where_the_store_may_be_missing_calls_go_through_and_are_counted_once(
    housed: Housed, down: set[str]
) -> None:
    async with housed(store_required=False, strict_usage=True) as house:
        house.store.down = down
        served = await house.serve(chat(60), Provider(whole("hello")))
        assert b"hello" in served.body
        counted = 0 if down == {"claim", "release"} else 1
        assert house.count("weirgate_unremembered_calls_total") == counted
        assert house.count("weirgate_store_failures_total") == counted


async def test_a_failed_call_whose_row_cannot_be_closed_complains_to_nobody(house: House) -> None:
    house.store.down = {"close_row"}
    with pytest.raises(KeyRefused):
        await house.serve(chat(), Provider(failing(401)))


# -- the client leaves -------------------------------------------------------------------------------------------------


async def test_a_call_that_is_cancelled_is_closed_and_its_row_says_so(house: House) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    role, text, *_ = chat_chunks("hello")
    answer = stream(events(role, text), hang)
    task = asyncio.create_task(house.serve(chat(stream=True), Provider(answer)))
    async with asyncio.timeout(edges.BOUND):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.closed == 1
    assert [row.status for row in await house.rows()] == ["cancelled"]
    assert house.store.verbs("remember") == []
    closed_once(house)


async def test_a_row_is_closed_even_when_the_call_is_cancelled_while_it_closes(house: House) -> None:
    gate, closing = asyncio.Event(), asyncio.Event()
    close = house.store.close_row

    def slowly(row: UsageRow) -> asyncio.Future[None]:
        closed = close(row)

        async def late() -> None:
            closing.set()
            await gate.wait()
            await closed

        return asyncio.get_running_loop().create_task(late())

    house.store.close_row = slowly  # type: ignore[method-assign]
    task = asyncio.create_task(house.serve(chat(), Provider(whole("x"))))
    async with asyncio.timeout(edges.BOUND):
        await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert [row.status for row in await house.rows()] == ["ok"]
