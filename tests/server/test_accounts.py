"""Settings are looked up at every call and read from the store now and then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.core.account import Account
from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Caller
from proxy.server.accounts import FRESH, Accounts
from proxy.store.sqlite import SqliteStore

ANN = Caller(tenant="t", key="k", end_user="ann")
LOW, HIGH = Account(threshold=0.4), Account(threshold=0.9)


class Counted(SqliteStore):
    """The real store. `reads` are the accounts asked for; while `held` is set, answers wait for it."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.reads = 0
        self.lost = False
        self.held: asyncio.Event | None = None

    async def account(self, *owner: Any) -> Account | None:
        self.reads += 1
        if self.lost:
            raise StoreUnavailable("lost")
        found = await super().account(*owner)
        if self.held is not None:
            async with asyncio.timeout(10):
                await self.held.wait()
        return found


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store() -> Any:
    opened = Counted()
    await opened.open(1.0)
    yield opened
    await opened.close()


async def test_what_was_read_is_believed_for_a_bounded_time(store: Counted) -> None:
    clock = Clock()
    mine, theirs = Accounts(store, clock=clock), Accounts(store, clock=clock)
    assert [await mine.of(ANN) for _ in range(100)] == [None] * 100
    assert store.reads == 1
    await theirs.replace(ANN, LOW, 1.0)  # as another replica would
    clock.now += FRESH - 0.01
    assert await mine.of(ANN) is None
    clock.now += 0.01
    assert await mine.of(ANN) == LOW
    assert store.reads == 2


async def test_a_change_through_this_process_holds_at_once_and_for_its_account_only(store: Counted) -> None:
    accounts = Accounts(store, clock=Clock())
    others = [
        Caller(tenant="t", key="k"),
        Caller(tenant="t", key="k2", end_user="ann"),
        Caller(tenant="t2", key="k", end_user="ann"),
    ]
    for caller in (ANN, *others):
        assert await accounts.of(caller) is None
    await accounts.replace(ANN, LOW, 1.0)
    assert await accounts.of(ANN) == LOW
    await accounts.replace(ANN, HIGH, 2.0)
    assert await accounts.of(ANN) == HIGH
    await accounts.replace(ANN, Account(), 3.0)
    assert [await accounts.of(caller) for caller in (ANN, *others)] == [None] * 4


async def test_what_was_asked_before_a_change_is_not_believed_behind_it(store: Counted) -> None:
    accounts = Accounts(store, clock=Clock())
    await accounts.replace(ANN, LOW, 1.0)
    store.held = asyncio.Event()
    slow = asyncio.create_task(accounts.of(ANN))
    while not store.reads:
        await asyncio.sleep(0)
    await accounts.replace(ANN, HIGH, 2.0)
    store.held.set()
    assert await slow == LOW  # it was so when it was asked
    assert await accounts.of(ANN) == HIGH


async def test_a_store_that_is_lost_refuses_the_call_unless_it_may_be_missing(store: Counted) -> None:
    clock = Clock()
    strict, lax = Accounts(store, clock=clock), Accounts(store, required=False, clock=clock)
    await lax.replace(ANN, LOW, 1.0)
    assert await lax.of(ANN) == LOW
    store.lost = True
    clock.now += 2 * FRESH
    with pytest.raises(StoreUnavailable):
        await strict.of(ANN)
    assert await lax.of(ANN) == LOW  # the last that was known
    assert await lax.of(Caller(tenant="t", key="k")) is None
    store.lost = False
    assert await strict.of(ANN) == LOW


async def test_memory_is_bounded_however_many_end_users_call(store: Counted) -> None:
    accounts = Accounts(store, clock=Clock())
    for number in range(20_000):
        await accounts.of(Caller(tenant="t", key="k", end_user=str(number)))
    assert len(accounts._known) <= 8192
