"""A client that leaves in the middle of a compaction: what is nearly done is kept, and nothing more is asked."""

from __future__ import annotations

import asyncio

import pytest

from tests import edges
from tests.driving import House, chat
from tests.edges import Provider, WatchedStore, whole


async def test_notes_under_way_are_stored_and_no_call_is_made_for_a_client_that_left(house: House) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slowly(tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        asked.set()
        await go.wait()
        return await WatchedStore.claim(house.store, tenant, key, owner, now, seconds)

    house.store.claim = slowly  # type: ignore[method-assign]
    provider = Provider(whole("x"))
    left = asyncio.create_task(house.serve(chat(60), provider))
    async with asyncio.timeout(edges.BOUND):
        await asked.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    go.set()
    assert await house.rows() == []
    assert provider.requests == []
    assert len([what for what in house.store.verbs("remember") if what.compaction is not None]) == 1
    back = await house.serve(chat(60), provider)
    assert back.outcome.report.compaction == "auto"
    assert len([what for what in house.store.verbs("remember") if what.compaction is not None]) == 1
