"""Work that is done at once, and work that waits to be awaited."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.done import DONE, Later


async def test_what_is_done_costs_no_turn_of_the_loop() -> None:
    turned: list[int] = []
    asyncio.get_running_loop().call_soon(turned.append, 1)
    await DONE
    await DONE
    assert turned == []


async def test_nothing_of_what_is_later_happens_before_it_is_awaited() -> None:
    done: list[str] = []

    async def work(what: str) -> None:
        await asyncio.sleep(0)
        done.append(what)

    Later(work, "dropped")
    kept = Later(work, "kept")
    await asyncio.sleep(0)
    assert done == []
    await kept
    assert done == ["kept"]


async def test_a_failure_comes_out_where_it_is_awaited() -> None:
    async def work(what: str) -> None:
        raise LookupError(what)

    with pytest.raises(LookupError, match="here"):
        await Later(work, "here")
