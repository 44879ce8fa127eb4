"""Batches on PostgreSQL: few transactions for many calls, one bad job fails alone, and reads come behind own writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_pool import Connection, Pool
from tests.store.owning import MINE, owned
from tests.store.samples import NOW, anchor, ask, digest, hidden, row, taught

PATIENCE = 20.0


@asynccontextmanager
async def held(url: str, table: str) -> AsyncIterator[None]:
    """While nobody can write to the table, and all can read it."""
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        yield
    await other.close()


async def test_many_rows_are_written_in_few_transactions(
    opened: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    transaction = Pool.transaction

    @asynccontextmanager
    async def counted(pool: Pool, **how: Any) -> AsyncIterator[Connection]:
        nonlocal begun
        begun += 1
        async with transaction(pool, **how) as connection:
            yield connection

    monkeypatch.setattr(Pool, "transaction", counted)

    async def call(number: int) -> None:
        opened.open_row(row(f"row{number}"))
        await opened.close_row(row(f"row{number}", status="ok"))

    await asyncio.gather(*(call(number) for number in range(500)))
    await opened.opened()
    assert 1 <= begun <= 2
    assert {each.status for each in await opened.usage(UsageQuery())} == {"ok"}


async def test_one_bad_job_fails_alone(opened: PostgresStore) -> None:
    bad = taught(reply=digest("bad"), conversation="nul \0 in an id of ours")
    good = [opened.close_row(row(f"row{number}", status="ok")) for number in range(20)]
    answers = await asyncio.gather(
        *good, opened.remember("t", bad, NOW), opened.remember("t", taught(reply="a1"), NOW), return_exceptions=True
    )
    (failure,) = [answer for answer in answers if answer is not None]
    assert isinstance(failure, StoreUnavailable) and not failure.retry
    assert "nul" not in failure.message
    assert len(await opened.usage(UsageQuery())) == 20
    assert (await opened.recall("t", ask("a1"), NOW)).conversation == "conv_1"
    opened.open_row(row("after"))  # what was given is to blame: the store is well


async def test_a_recall_waits_for_what_was_queued_before_it_and_for_nothing_else(
    opened: PostgresStore, shared: str
) -> None:
    await opened.remember("t", taught(reply="a1", anchor=anchor(1)), NOW)
    await asyncio.gather(*(opened.recall("t", ask("a1"), NOW) for _ in range(4)))  # connections are there
    async with held(shared, "reply"):
        writing = opened.remember("t", taught(reply="a1", anchor=anchor(2)), NOW)
        asked = asyncio.create_task(opened.recall("t", ask("a1"), NOW))
        async with asyncio.timeout(PATIENCE):
            for _ in range(20):
                assert (await opened.recall("other", ask("a1"), NOW)).conversation is None
        assert not asked.done()
        assert not writing.done()
    async with asyncio.timeout(PATIENCE):
        assert (await asked).anchor == anchor(2)


async def test_a_cancelled_caller_abandons_its_answer_and_not_its_write(opened: PostgresStore, shared: str) -> None:
    async with held(shared, "reply"):
        calls = [opened.remember("t", taught(reply=f"a{n}", conversation=f"c{n}"), NOW) for n in range(50)]
        calls += [opened.close_row(row(f"row{n}", status="ok")) for n in range(50)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
    assert len(await opened.usage(UsageQuery())) == 50
    assert (await opened.recall("t", ask("a49"), NOW)).conversation == "c49"


async def test_a_lock_that_somebody_holds_too_long_is_a_refusal_and_not_a_wait(
    opened: PostgresStore, shared: str
) -> None:
    async with held(shared, "reply"):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match="locked"):
                await opened.remember("t", taught(reply="a1"), NOW)
        with pytest.raises(StoreUnavailable, match="locked"):
            opened.open_row(row())
    async with asyncio.timeout(PATIENCE):
        while opened._writer.failing is not None:
            await asyncio.sleep(0)
    await opened.remember("t", taught(reply="a1", hidden=hidden("u1", b"[]")), NOW)


async def test_a_reader_of_usage_sees_openings_and_a_row_is_closed_where_it_stands(opened: PostgresStore) -> None:
    opened.open_row(row("short"))
    await opened.close_row(row("short", status="ok"))
    opened.open_row(row("long"))
    found = {each.id: each.status for each in await opened.usage(UsageQuery()) if isinstance(each, UsageRow)}
    assert found == {"short": "ok", "long": "open"}
    closed = row("long", status="failed", input=7)
    await opened.close_row(closed)
    assert closed in await opened.usage(UsageQuery())


async def test_one_question_is_one_journey(opened: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.conversations is not None
    await opened.conversations.create(*MINE, owned())
    with monkeypatch.context() as patched:
        patched.delattr(Pool, "transaction")
        assert await opened.conversations.find(*MINE, "conv_1", NOW) is not None
        assert await opened.conversations.path(*MINE, "conv_1") == ()
