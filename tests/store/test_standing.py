"""Limits that are set while the server runs, uses, and what keys used: alike on every store."""

from __future__ import annotations

import msgspec

from proxy.core.quota import Amount, Quota
from proxy.core.usage import UsageRow
from proxy.store import Standing, Store
from tests.store.samples import NOW, row


async def stored(store: Store, *rows: UsageRow) -> None:
    for each in (msgspec.structs.replace(one, status="ok") for one in rows):
        store.open_row(each)
        await store.close_row(each)


async def test_limits_are_replaced_whole_and_go_by_tenant_and_key(store: Store) -> None:
    assert await store.standings() == ()
    await store.set_quota("a", "k", Quota(requests_per_day=5, expires=NOW, stopped=False))
    await store.set_quota("b", "k", Quota(cost_per_day=1 << 50))
    await store.set_quota("a", "k", Quota(tokens_per_minute=7))
    await store.set_quota("a", "", Quota(stopped=True))
    assert await store.standings() == (
        Standing(tenant="a", key="", quota=Quota(stopped=True)),
        Standing(tenant="a", key="k", quota=Quota(tokens_per_minute=7)),
        Standing(tenant="b", key="k", quota=Quota(cost_per_day=1 << 50)),
    )


async def test_a_use_changes_no_limit_and_a_limit_no_use_and_an_earlier_one_nothing(store: Store) -> None:
    await store.mark_used("a", "k", NOW)
    await store.set_quota("a", "k", Quota(streams=3))
    await store.mark_used("a", "k", NOW + 60)
    await store.mark_used("a", "k", NOW + 30)
    assert await store.standings() == (Standing(tenant="a", key="k", quota=Quota(streams=3), last_used=NOW + 60),)


async def test_what_keys_used_is_summed_from_a_moment_on(store: Store) -> None:
    assert await store.spent(0.0) == {}
    await stored(
        store,
        row("r1", tenant="a", key="k", opened_at=NOW - 1, input=1000, output=1, cost=7),
        row("r2", tenant="a", key="k", opened_at=NOW, input=10, output=1, cost=5),
        row("r3", tenant="a", key="k", opened_at=NOW + 1, parent="r2", purpose="retry", input=20, output=2, cost=None),
        row("r4", tenant="a", key="k", opened_at=NOW + 1, purpose="compaction", input=40, output=4, cost=1),
        row("r5", tenant="b", key="k", opened_at=NOW + 2, input=80, output=8, cost=1 << 40),
    )
    assert await store.spent(NOW) == {("a", "k"): Amount(1, 77, 6), ("b", "k"): Amount(1, 88, 1 << 40)}
    assert await store.spent(NOW + 3) == {}
    assert (await store.spent(0.0))["a", "k"] == Amount(2, 1078, 13)


async def test_open_rows_are_no_use_yet(store: Store) -> None:
    store.open_row(row("open", tenant="a", key="k", opened_at=NOW, status="open", input=0, output=0, cost=None))
    await store.opened()
    assert (await store.spent(NOW))["a", "k"] == Amount()
