"""PostgreSQL goes away under load and comes back: nobody waits for long, nothing acknowledged is lost, and the store
finds it again by itself."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.store import UsageQuery
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_pool import Pool
from tests.postgres import Cluster
from tests.store.samples import NOW, ask, digest, row, taught

PATIENCE = 30.0


class Load:
    """Calls in a row, as the gateway makes them: recall, open, remember, close."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.acknowledged: list[str] = []
        self.refused: list[tuple[str, float]] = []
        self.ending = False

    async def run(self, who: int) -> None:
        number = 0
        while not self.ending:
            number += 1
            await self.call(f"{who}-{number}")

    async def call(self, name: str) -> None:
        began = time.monotonic()
        try:
            await self.store.recall("t", ask(name), NOW)
            self.store.open_row(row(name))
            await self.store.remember("t", taught(reply=digest(name), conversation=name), NOW)
            await self.store.close_row(row(name, status="ok"))
            self.acknowledged.append(name)
        except StoreUnavailable as failure:
            assert failure.retry
            self.refused.append((name, time.monotonic() - began))
            await asyncio.sleep(0)

    async def served(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(PATIENCE):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_restart_under_load_loses_nothing_and_is_over_by_itself(
    opened: PostgresStore, server: Cluster, how: signal.Signals
) -> None:
    load = Load(opened)
    calls = [asyncio.create_task(load.run(who)) for who in range(20)]
    await load.served(200)
    await asyncio.to_thread(server.stop, how)
    before = len(load.refused)
    async with asyncio.timeout(PATIENCE):
        while len(load.refused) < before + 20:
            await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        opened.open_row(row("new"))
    with pytest.raises(StoreUnavailable):
        await opened.ready()
    await asyncio.to_thread(server.start)
    back = time.monotonic()
    await load.served(200)
    print(f"recovered after {time.monotonic() - back:.2f} s, slowest refusal {max(t for _, t in load.refused):.2f} s")
    load.ending = True
    await asyncio.gather(*calls)
    await opened.ready()
    found = {each.id: each.status for each in await opened.usage(UsageQuery(limit=100_000))}
    assert [name for name in load.acknowledged if found.get(name) != "ok"] == []
    for name in load.acknowledged[:: len(load.acknowledged) // 50]:
        assert (await opened.recall("t", ask(name), NOW)).conversation == name
    # The rows of refused calls are written too, as far as they were closed: their calls were made.
    assert set(found.values()) <= {"ok", "open"}


async def test_connections_that_the_server_ended_are_replaced_unseen(opened: PostgresStore, server: Cluster) -> None:
    async def end() -> None:
        where = "datname = 'shared' AND pid <> pg_backend_pid()"
        await asyncio.to_thread(server.say, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}")

    await opened.recall("t", ask("u1"), NOW)
    await end()
    await opened.close_row(row("one", status="ok"))
    await end()
    await opened.remember("t", taught(reply="a1"), NOW)
    await end()
    assert (await opened.recall("t", ask("a1"), NOW)).conversation == "conv_1"
    assert [each.id for each in await opened.usage(UsageQuery())] == ["one"]


async def test_an_operation_that_was_cancelled_takes_its_connection_along(shared: str) -> None:
    pool = Pool(shared, 2)
    await pool.start()
    asked = asyncio.Event()

    async def slow() -> None:
        async with pool.connection() as connection:
            seen.append(connection)
            asked.set()
            await connection.fetchval("SELECT pg_sleep(30)")

    async def quick() -> int:
        async with pool.connection() as connection:
            seen.append(connection)
            answer: int = await connection.fetchval("SELECT 7")
            return answer

    seen: list[object] = []
    assert await quick() == 7
    running = asyncio.create_task(slow())
    await asked.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(PATIENCE):
        assert set(await asyncio.gather(*(quick() for _ in range(20)))) == {7}
    first, cancelled, *later = seen
    assert first is cancelled, "a connection is used again, as long as nothing happens to it"
    assert cancelled not in later
    await pool.close()


async def test_nobody_reads_the_answer_to_anothers_question(opened: PostgresStore) -> None:
    for tenant in ("one", "two"):
        await opened.remember(tenant, taught(reply="a1", conversation=tenant), NOW)
    seen: set[tuple[str, str | None]] = set()

    async def read(tenant: str) -> None:
        seen.add((tenant, (await opened.recall(tenant, ask("u2", "a1"), NOW)).conversation))

    calls = [asyncio.create_task(read(tenant)) for _ in range(150) for tenant in ("one", "two")]
    for number, call in enumerate(calls):
        if number % 3 == 0:
            await asyncio.sleep(0)
            call.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*calls, return_exceptions=True)
    assert seen == {("one", "one"), ("two", "two")}


async def test_a_failed_transaction_leaves_nothing_and_the_connection_serves_on(shared: str) -> None:
    pool = Pool(shared, 1)
    await pool.start()
    with pytest.raises(ValueError, match="ours"):
        async with pool.transaction() as connection:
            await connection.execute("INSERT INTO secret VALUES ('x', '')")
            raise ValueError("ours")
    async with pool.connection() as again:
        assert again is connection
        assert await again.fetchval("SELECT count(*) FROM secret") == 0
    await pool.close()


async def test_an_address_where_nothing_listens_is_said_at_once_and_without_its_password(server: Cluster) -> None:
    wrong = server.url("shared").replace("weirgate@", "weirgate:s3cret-pass@").replace(str(server.port), "1")
    for url in (wrong, server.url("no-such-database").replace("weirgate@", "weirgate:s3cret-pass@")):
        with pytest.raises(StoreUnavailable) as refused:
            await PostgresStore(url).open(NOW)
        assert "s3cret" not in str(refused.value)
        assert refused.value.__cause__ is None and refused.value.__suppress_context__


async def test_rows_whose_closing_was_refused_are_written_when_the_server_is_back(
    opened: PostgresStore, server: Cluster
) -> None:
    opened.open_row(row("open"))
    await opened.opened()
    await asyncio.to_thread(server.stop)
    for name in ("open", "new"):
        with pytest.raises(StoreUnavailable):
            await opened.close_row(row(name, status="ok"))
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE):
        while opened._writer.failing is not None:
            await asyncio.sleep(0)
    assert {each.id: each.status for each in await opened.usage(UsageQuery())} == {"open": "ok", "new": "ok"}
