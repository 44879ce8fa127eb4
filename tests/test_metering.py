"""What keys use, between requests, rows and the sums of a store that other processes write to as well."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from proxy.core.errors import Busy, StoreUnavailable
from proxy.core.quota import DAY, Amount, Quota
from proxy.metering import Metering
from proxy.store import Store
from tests.store.samples import row

KEY = ("t", "k")
NOON = 20_000 * DAY + DAY / 2


class Sums:
    """A store that several processes write to; `total` is what is in it."""

    def __init__(self, *, shared: bool = True) -> None:
        self.shared = shared
        self.total = Amount()
        self.asked: list[float] = []
        self.down = False
        self.closing: list[asyncio.Future[None]] = []

    async def spent(self, since: float) -> Mapping[tuple[str, str], Amount]:
        self.asked.append(since)
        if self.down:
            raise StoreUnavailable("down")
        return {KEY: self.total}

    def close_row(self, row: Any) -> asyncio.Future[None]:
        self.closing.append(asyncio.get_running_loop().create_future())
        return self.closing[-1]


class Hands:
    def __init__(self) -> None:
        self.clock = 1000.0

    def wall(self) -> float:
        return NOON + self.clock - 1000.0

    def now(self) -> float:
        return self.clock


async def metering(store: Sums, hands: Hands, **limits: int) -> Metering:
    made = Metering(cast("Store", store), hands.wall, hands.now)
    await made.take({KEY: Quota(**limits)})  # type: ignore[arg-type]
    return made


async def test_what_other_replicas_spent_is_known_within_a_second_and_asked_for_no_sooner() -> None:
    store, hands = Sums(), Hands()
    made = await metering(store, hands, tokens_per_day=100)
    assert store.asked == [NOON - DAY / 2]
    store.total = Amount(3, 90, 0)  # by another replica
    hands.clock += 0.5
    await made.look()
    assert made.meters[KEY].today.tokens == 90
    store.total = Amount(4, 100, 0)
    hands.clock += 0.9
    assert not made.due
    await made.look()
    assert len(store.asked) == 2
    hands.clock += 0.2
    await made.look()
    with pytest.raises(Busy):
        made.enter(made.meters[KEY], "r")


async def test_where_summing_is_long_work_it_is_done_rarely() -> None:
    store, hands = Sums(), Hands()
    made = await metering(store, hands, tokens_per_day=100)
    whole = store.spent

    async def slow(since: float) -> Mapping[tuple[str, str], Amount]:
        hands.clock += 2.0
        return await whole(since)

    store.spent = slow  # type: ignore[method-assign]
    await made.look()
    hands.clock += 99
    assert not made.due
    hands.clock += 1
    assert made.due


async def test_a_row_counts_once_before_it_is_stored_when_it_is_and_after() -> None:
    store, hands = Sums(), Hands()
    made = await metering(store, hands, tokens_per_day=100)
    meter = made.meters[KEY]
    held = made.enter(meter, "req")
    meter.reserve(held, 50, 0, made.now())
    made.close_row(row(tenant="t", key="k", request="req", input=30, output=10))
    assert meter.today == Amount(1, 40, 0) and held.amount == Amount(0, 10, 0)
    hands.clock += 1.1
    await made.look()  # asked before it was durable: the sum is without it
    assert meter.today.tokens == 40
    store.total = Amount(1, 40, 0)
    store.closing[0].set_result(None)
    await asyncio.sleep(0)
    hands.clock += 1.1
    await made.look()
    assert meter.today == Amount(1, 40, 0)
    made.leave(meter, "req", held)
    assert made._held == {}


async def test_a_summary_is_no_request_and_a_repeated_call_no_second_one() -> None:
    made = await metering(Sums(), Hands(), requests_per_day=10)
    for each in (row(purpose="compaction"), row(), row(purpose="retry", parent="row_1")):
        made.close_row(each)
    assert made.meters[KEY].today.requests == 1


async def test_a_database_of_ones_own_is_summed_once() -> None:
    store, hands = Sums(shared=False), Hands()
    made = await metering(store, hands, cost_per_day=5)
    hands.clock += 1000
    await made.look()
    assert len(store.asked) == 1 and not made.due


async def test_limits_that_need_no_day_ask_for_none_and_new_ones_that_do_are_asked_for_first() -> None:
    store, hands = Sums(), Hands()
    made = await metering(store, hands, streams=5)
    assert store.asked == []
    held = made.enter(made.meters[KEY], "req")
    store.down = True
    with pytest.raises(StoreUnavailable):
        await made.take({KEY: Quota(tokens_per_day=5)})
    store.down, store.total = False, Amount(1, 7, 0)
    await made.take({KEY: Quota(tokens_per_day=5)})
    assert made.meters[KEY].running == 1  # who runs is still known
    with pytest.raises(Busy):
        made.enter(made.meters[KEY], "another")
    await made.take({})
    assert made.meters == {}
    made.close_row(row(tenant="t", key="k", request="req"))  # nobody counts it any more
    assert held.amount == Amount(1, 0, 0)
