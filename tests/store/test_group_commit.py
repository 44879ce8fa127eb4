"""Batches: what is acknowledged is written, one bad job fails by itself, nobody waits for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Stored
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery, group_commit
from proxy.store.sqlite import SqliteStore
from tests.store.samples import NOW, SCOPE, Watch, Watched, anchor, ask, compaction, row, taught

PATIENCE = 20.0


class Opened:
    """A store on a file whose statements the test can watch and spoil."""

    def __init__(self, path: Path) -> None:
        self.watch = Watch()
        self.store = SqliteStore(str(path), connect=self.watch)

    async def __aenter__(self) -> Opened:
        await self.store.open(NOW)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.watch.before = None
        await self.store.close()


async def test_many_rows_are_written_in_few_transactions(database: Path) -> None:
    async with Opened(database) as opened:
        said: list[str] = []
        opened.watch.before = lambda _, sql: said.append(sql)
        store = opened.store

        async def call(number: int) -> None:
            store.open_row(row(f"row{number}"))
            await store.close_row(row(f"row{number}", status="ok"))

        await asyncio.gather(*(call(number) for number in range(500)))
        commits = said.count("COMMIT")
        # Opened and closed within one batch: there is nothing to open.
        openings = sum(sql.startswith("INSERT INTO usage") and "DO NOTHING" in sql for sql in said)
        assert len(await store.usage(UsageQuery())) == 500
        assert 1 <= commits <= 20, f"{commits} commits"
        assert openings == 0


async def test_an_open_row_that_nobody_waits_for_is_written_soon(database: Path) -> None:
    async with Opened(database) as opened:
        written = asyncio.Event()
        loop = asyncio.get_running_loop()

        def before(_: Watched, sql: str) -> None:
            if sql == "COMMIT":
                loop.call_soon_threadsafe(written.set)

        opened.watch.before = before
        opened.store.open_row(row())
        await asyncio.wait_for(written.wait(), PATIENCE)


async def test_a_row_closed_before_its_opening_left_is_written_once_and_a_reader_sees_openings(database: Path) -> None:
    async with Opened(database) as opened:
        said: list[str] = []
        opened.watch.before = lambda _, sql: said.append(sql)
        store = opened.store
        store.open_row(row("short"))
        await store.close_row(row("short", status="ok"))
        await store.usage(UsageQuery())
        assert sum(sql.startswith("INSERT INTO usage") for sql in said) == 1
        store.open_row(row("long"))
        found = {each.id: each.status for each in await store.usage(UsageQuery()) if isinstance(each, UsageRow)}
        assert found == {"short": "ok", "long": "open"}


async def test_calls_that_end_together_share_a_commit_and_a_reader_is_not_kept_waiting(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(database) as opened:
        said: list[str] = []
        opened.watch.before = lambda _, sql: said.append(sql)
        store = opened.store
        monkeypatch.setattr(group_commit, "GATHER", 2 * PATIENCE)
        monkeypatch.setattr(group_commit, "LINGER", 2 * PATIENCE)
        for number in range(group_commit.COMPANY + 2):
            store.open_row(row(f"row{number}"))
        first = store.close_row(row("row0", status="ok"))
        await asyncio.sleep(0)
        second = store.close_row(row("row1", status="ok"))
        async with asyncio.timeout(PATIENCE):
            await store.usage(UsageQuery())
            await asyncio.gather(first, second)
        assert said.count("COMMIT") == 1


async def test_one_bad_job_fails_alone(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store

        def before(connection: Watched, sql: str) -> None:
            if sql.startswith("INSERT INTO result"):
                raise sqlite3.OperationalError("injected, with content: SECRET")

        opened.watch.before = before
        bad = taught(reply="bad", results=(Stored(reference="r", text="x"),))
        good = [store.close_row(row(f"row{number}", status="ok")) for number in range(20)]
        answers = await asyncio.gather(
            *good[:10], store.remember("t", bad, NOW), *good[10:], store.remember("t", taught(reply="a1"), NOW),
            return_exceptions=True,
        )  # fmt: skip
        failed = [answer for answer in answers if answer is not None]
        assert len(failed) == 1
        assert isinstance(failed[0], StoreUnavailable)
        assert "SECRET" not in str(failed[0])
        assert failed[0].__cause__ is None
        assert len(await store.usage(UsageQuery())) == 20
        assert (await store.recall("t", ask("a1"), NOW)).conversation == "conv_1"
        assert (await store.recall("t", ask("bad"), NOW)).conversation is None  # all of it or nothing


async def test_whichever_statement_fails_what_was_acknowledged_is_there_and_nothing_is_half_there(
    migrated: Path, tmp_path: Path
) -> None:
    """SQLite's own method: fail the first statement, then the second, until a run has none left to fail."""
    runs = 0
    for fail_at in range(1, 200):
        runs += 1
        path = tmp_path / f"run{fail_at}.db"
        path.write_bytes(migrated.read_bytes())
        if not await _run_with_failure(path, fail_at):
            break
    assert 10 < runs < 199, f"{runs} runs"


async def _run_with_failure(path: Path, fail_at: int) -> bool:
    """Whether there was a statement to fail."""
    async with Opened(path) as opened:
        store, count = opened.store, 0

        def before(_: Watched, sql: str) -> None:
            nonlocal count
            count += 1
            if count == fail_at:
                raise sqlite3.OperationalError("injected")

        opened.watch.before = before
        what = taught(
            reply="a1", label="chat", compaction=compaction("u1", 1), results=(Stored(reference="r", text="x"),)
        )
        acknowledged: dict[str, bool] = {}
        for name, work in (
            ("row", lambda: store.close_row(row(status="ok"))),
            ("memory", lambda: store.remember("t", what, NOW)),
            ("claim", lambda: store.claim("t", b"k", "me", NOW, 10)),
            ("again", lambda: store.close_row(row("row_2", status="ok"))),
        ):
            try:
                await asyncio.wait_for(work(), PATIENCE)
                acknowledged[name] = True
            except StoreUnavailable:
                acknowledged[name] = False
        opened.watch.before = None
        rows = {found.id for found in await store.usage(UsageQuery())}
        memory = await store.recall("t", ask("a1", "u1"), NOW)
        parts = [memory.conversation is not None, bool(memory.compactions), await store.result("t", SCOPE, "r") == "x"]
        assert all(parts) or not any(parts), f"half of it, at statement {fail_at}"
        assert parts[0] or not acknowledged["memory"]
        assert "row_1" in rows or not acknowledged["row"]
        assert "row_2" in rows or not acknowledged["again"]
        assert await store.claim("t", b"k", "you", NOW, 10) is not acknowledged["claim"]
        return count >= fail_at


async def test_a_transaction_that_could_not_even_be_taken_back_does_not_stop_the_next(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store

        def before(_: Watched, sql: str) -> None:
            if sql in ("COMMIT", "ROLLBACK"):
                raise sqlite3.OperationalError("injected")

        opened.watch.before = before
        with pytest.raises(StoreUnavailable):
            await store.close_row(row("lost", status="ok"))
        opened.watch.before = None
        await store.close_row(row("kept", status="ok"))
        assert [found.id for found in await store.usage(UsageQuery())] == ["kept"]


async def test_a_full_disk_is_said_so_and_the_store_recovers_when_there_is_room(database: Path) -> None:
    async with Opened(database) as opened:
        store, room = opened.store, False

        def before(connection: Watched, sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                used = connection.plainly("PRAGMA page_count").fetchone()[0]
                connection.plainly(f"PRAGMA max_page_count = {1 << 30 if room else used}")

        opened.watch.before = before
        acknowledged: set[str] = set()
        refused: list[StoreUnavailable] = []
        for number in range(200):
            try:
                await store.close_row(row(f"row{number}", status="ok", finish="x" * 500))
                acknowledged.add(f"row{number}")
            except StoreUnavailable as full:
                refused.append(full)
        assert refused
        assert {full.code for full in refused} == {"storage_full"}
        # No call may begin that could not be accounted for.
        with pytest.raises(StoreUnavailable) as recalled:
            await store.recall("t", ask("u1"), NOW)
        with pytest.raises(StoreUnavailable) as opening:
            store.open_row(row("new"))
        with pytest.raises(StoreUnavailable) as ready:
            await store.ready()
        assert {error.value.code for error in (recalled, opening, ready)} == {"storage_full"}
        room = True
        await store.recall("t", ask("u1"), NOW)
        store.open_row(row("new"))
        await store.opened()
        await store.close_row(row("last", status="ok"))
        # The refused rows too: their calls were made, whatever the clients were told.
        every = {f"row{number}": "ok" for number in range(200)} | {"new": "open", "last": "ok"}
        assert {found.id: found.status for found in await store.usage(UsageQuery(limit=1_000))} == every


async def test_rows_that_a_full_disk_kept_open_are_closed_at_the_latest_when_the_store_is(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store
        store.open_row(row("caught"))
        await store.opened()

        def before(connection: Watched, sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                raise StoreUnavailable("The disk is away.")

        opened.watch.before = before
        with pytest.raises(StoreUnavailable):
            await store.close_row(row("caught", status="ok"))
    async with Opened(database) as opened:
        assert [(found.id, found.status) for found in await opened.store.usage(UsageQuery())] == [("caught", "ok")]


async def test_rows_kept_for_later_are_bounded_and_one_that_is_never_taken_is_let_go(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.store.group_commit.OWED", 3)
    async with Opened(database) as opened:
        store = opened.store

        def away(_: Watched, sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                raise StoreUnavailable("The disk is away.")

        def bad(_: Watched, sql: str) -> None:
            if sql.startswith("INSERT INTO usage"):
                raise sqlite3.OperationalError("injected")

        for after, left in ((None, {"row2", "row3", "row4"}), (bad, set())):
            opened.watch.before = away
            for number in range(5):
                with pytest.raises(StoreUnavailable):
                    await store.close_row(row(f"row{number}", tenant=f"after {after}", status="ok"))
            opened.watch.before = after
            await store.ready()
            opened.watch.before = None
            await store.ready()
            found = await store.usage(UsageQuery(tenant=f"after {after}"))
            assert {row.id for row in found} == left


async def test_a_store_that_is_not_asked_to_recall_recovers_too(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store

        def before(_: Watched, sql: str) -> None:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("injected")

        opened.watch.before = before
        with pytest.raises(StoreUnavailable):
            await store.close_row(row(status="ok"))
        opened.watch.before = None
        with pytest.raises(StoreUnavailable):
            store.open_row(row("refused"))
        await store.usage(UsageQuery())  # behind the try that the refused row set off
        store.open_row(row("taken"))
        await store.opened()
        assert [found.id for found in await store.usage(UsageQuery())] == ["taken"]


async def test_whoever_waits_for_an_opening_is_told_that_it_failed(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store

        def before(_: Watched, sql: str) -> None:
            if sql.startswith("INSERT INTO usage"):
                raise sqlite3.OperationalError("injected")

        opened.watch.before = before
        store.open_row(row())
        with pytest.raises(StoreUnavailable):
            await store.opened()
        opened.watch.before = None
        await store.ready()
        store.open_row(row("row_2"))
        await store.opened()
        await store.close_row(row(status="ok"))  # the closing writes the whole row
        assert {found.id: found.status for found in await store.usage(UsageQuery())} == {"row_1": "ok", "row_2": "open"}


async def test_a_cancelled_caller_abandons_its_answer_and_not_its_write(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store
        calls = [store.close_row(row(f"row{n}", status="ok")) for n in range(1_000)]
        calls += [store.remember("t", taught(reply=f"a{n}", anchor=anchor(n)), NOW) for n in range(1_000)]
        await asyncio.sleep(0)  # all have queued
        for call in calls:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        assert len(await store.usage(UsageQuery(limit=2_000))) == 1_000
        for number in (0, 500, 999):
            memory = await store.recall("t", ask(f"a{number}"), NOW)
            assert memory.anchor == anchor(number)


async def test_what_is_cancelled_under_load_never_shows_another_tenants_rows(database: Path) -> None:
    async with Opened(database) as opened:
        store = opened.store
        for tenant in ("one", "two"):
            canary = Stored(reference="r", text=f"canary of {tenant}")
            await store.remember(tenant, taught(reply="a1", conversation=tenant, results=(canary,)), NOW)
        seen: set[tuple[str, str | None]] = set()

        async def read(tenant: str) -> None:
            seen.add((tenant, await store.result(tenant, SCOPE, "r")))
            seen.add((tenant, (await store.recall(tenant, ask("u2", "a1"), NOW)).conversation))

        calls = [asyncio.create_task(read(tenant)) for _ in range(1_000) for tenant in ("one", "two")]
        for number, call in enumerate(calls):
            if number % 3 == 0:
                await asyncio.sleep(0)
                call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert seen == {("one", "one"), ("two", "two"), ("one", "canary of one"), ("two", "canary of two")}


async def test_closing_writes_what_waits(database: Path) -> None:
    async with Opened(database) as opened:
        for number in range(2_500):
            opened.store.open_row(row(f"row{number}"))
    again = SqliteStore(str(database))
    assert await again.open(NOW) == 2_500
    assert {found.status for found in await again.usage(UsageQuery(limit=5_000))} == {"unknown"}
    await again.close()
