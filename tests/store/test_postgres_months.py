"""Usage rows by month: made ahead, filled from the default, dropped whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from proxy.store import UsageQuery
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_months import AHEAD, Month, make, month_of
from tests.postgres import Cluster
from tests.store.samples import NOW, row

DAY = 86_400.0
_MONTHS = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^usage_[0-9_]+$'"


@pytest.fixture
async def store(server: Cluster, own: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(server.url(own))
    await opened.open(NOW)
    yield opened
    await opened.close()


@given(seconds=some.floats(0, 4e9))
def test_every_moment_is_in_its_month(seconds: float) -> None:
    month = month_of(seconds)
    assert month.start <= seconds < month.next.start
    assert month.next > month
    assert 28 * DAY <= month.next.start - month.start <= 31 * DAY


async def test_the_months_ahead_are_there_and_each_row_stands_in_its_own(
    store: PostgresStore, server: Cluster, own: str
) -> None:
    assert server.say(_MONTHS, own).split() == ["usage_2027_01", "usage_2027_02", "usage_2027_03"]
    assert len(server.say(_MONTHS, own).split()) == AHEAD + 1
    for number in range(3):
        await store.close_row(row(f"row{number}", status="ok", opened_at=NOW + 31 * number * DAY))
    for number in (1, 2, 3):
        assert server.say(f"SELECT count(*) FROM usage_2027_0{number}", own) == "1"


async def test_what_came_before_its_month_was_made_moves_into_it(
    store: PostgresStore, server: Cluster, own: str
) -> None:
    far = NOW + 400 * DAY
    await store.close_row(row("far", status="ok", opened_at=far))
    await store.close_row(row("farther", status="ok", opened_at=far + 400 * DAY))
    assert server.say("SELECT count(*) FROM usage_default", own) == "2"
    assert await make(store._pool, far) == AHEAD + 1
    assert await make(store._pool, far) == 0
    assert server.say("SELECT id FROM usage_default", own) == "farther"
    assert server.say(f"SELECT id FROM {month_of(far).name}", own) == "far"
    assert len(await store.usage(UsageQuery())) == 2


async def test_retention_drops_whole_months_and_deletes_the_rest(
    store: PostgresStore, server: Cluster, own: str
) -> None:
    past = [NOW - number * 31 * DAY for number in range(1, 5)]
    for at in past:
        await make(store._pool, at)
    for number, at in enumerate(past):
        for tenant in ("t", "gone"):
            await store.close_row(row(f"row{number}", tenant=tenant, status="ok", opened_at=at))
    store.open_row(row("runs", opened_at=past[3]))
    await store.opened()
    # The first half of the second month, and all before it, but for the month in which a call still runs.
    assert await store.retire(past[1]) == 4
    months = server.say(_MONTHS, own).split()
    assert month_of(past[2]).name not in months
    assert month_of(past[3]).name in months
    left = {(each.tenant, each.id) for each in await store.usage(UsageQuery())}
    assert left == {("t", "row0"), ("t", "row1"), ("gone", "row0"), ("gone", "row1"), ("t", "runs")}
    assert await store.retire(NOW + DAY) == 4
    assert [each.id for each in await store.usage(UsageQuery())] == ["runs"]


def test_a_year_turns() -> None:
    assert Month(year=2026, month=12).next == Month(year=2027, month=1)
    assert Month(year=2027, month=1).name == "usage_2027_01"
