"""The sums of a report are the sums of its rows, computed a second time in plain Python."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from proxy.core.usage import UsageRow
from proxy.store import Store, UsageQuery, UsageSum
from tests.store.samples import NOW, row

DAY = 86_400.0


def rows() -> list[UsageRow]:
    chance = random.Random(7)
    return [
        row(
            f"row{number}",
            tenant=chance.choice(("a", "b")),
            key=chance.choice(("k1", "k2")),
            conversation=chance.choice(("c1", "c2", None)),
            model=chance.choice(("m1", "m2", "m3")),
            status=chance.choice(("ok", "failed", "cancelled", "open")),
            opened_at=NOW + chance.randrange(0, 5 * 86_400),
            input=chance.randrange(10_000),
            output=chance.randrange(1_000),
            cached=chance.randrange(100),
            reasoning=chance.randrange(100),
            cost=chance.choice((None, chance.randrange(10**9))),
            unpriced=chance.random() < 0.2,
            estimated=chance.random() < 0.3,
            compaction=chance.choice(("none", "auto", "recovered")),
        )
        for number in range(400)
    ]


def recomputed(found: list[UsageRow], by: str) -> set[UsageSum]:
    groups: dict[tuple[str | None, str], list[UsageRow]] = defaultdict(list)
    for one in found:
        day = datetime.fromtimestamp(one.opened_at, UTC).date().isoformat()
        value = {"day": day, "model": one.model, "key": one.key, "conversation": one.conversation or ""}[by]
        groups[one.tenant if by in ("key", "conversation") else None, value].append(one)
    return {
        UsageSum(
            key=value,
            tenant=tenant,
            calls=len(some),
            first=min(one.opened_at for one in some),
            last=max(one.opened_at for one in some),
            input=sum(one.input for one in some),
            output=sum(one.output for one in some),
            cached=sum(one.cached for one in some),
            reasoning=sum(one.reasoning for one in some),
            cost=sum(one.cost or 0 for one in some),
            unpriced=sum(one.unpriced for one in some),
            failed=sum(one.status == "failed" for one in some),
            compactions=sum(one.compaction != "none" for one in some),
            recovered=sum(one.compaction == "recovered" for one in some),
            estimated=sum(one.estimated for one in some),
        )
        for (tenant, value), some in groups.items()
    }


async def filled(store: Store) -> list[UsageRow]:
    made = rows()
    for one in made:
        store.open_row(one)
    await store.opened()
    await asyncio.gather(*(store.close_row(one) for one in made if one.status != "open"))
    return made


@pytest.mark.parametrize("by", ["model", "conversation", "day", "key"])
async def test_sums_are_those_of_the_rows(store: Store, by: str) -> None:
    made = await filled(store)
    for tenant in (None, "a", "nobody"):
        for since, until in ((None, None), (NOW + DAY, NOW + 3 * DAY), (NOW + 9 * DAY, None)):
            asked = UsageQuery(tenant=tenant, since=since, until=until, by=by)
            chosen = [
                one
                for one in made
                if tenant in (None, one.tenant) and (since or 0) <= one.opened_at < (until or float("inf"))
            ]
            found = await store.usage(asked)
            assert len(found) == len(set(found))
            assert set(found) == recomputed(chosen, by)


async def test_the_dearest_come_first_and_days_in_their_order(store: Store) -> None:
    await filled(store)
    costs = [found.cost for found in await store.usage(UsageQuery(by="model"))]
    assert costs == sorted(costs, reverse=True)
    days = [found.key for found in await store.usage(UsageQuery(by="day"))]
    assert days == sorted(days)
    assert len(days) >= 5


async def test_single_rows_come_the_newest_first_up_to_the_limit(store: Store) -> None:
    made = await filled(store)
    found = await store.usage(UsageQuery(limit=50))
    assert list(found) == sorted(made, key=lambda one: (one.opened_at, one.id), reverse=True)[:50]
    assert await store.usage(UsageQuery(limit=0)) == ()
