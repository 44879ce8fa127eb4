"""The file: one process, kept through kill -9, never replaced by an empty one."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Stored
from proxy.store import UsageQuery
from proxy.store.sqlite import SqliteStore, from_url
from tests.data import ROOT
from tests.store.samples import NOW, SCOPE, ask, compaction, hidden, row, taught

# Writes for as long as it lives, and prints what has been acknowledged.
WRITER = """
import asyncio, sys
from proxy.store.sqlite import SqliteStore
from tests.store.samples import NOW, compaction, row, taught

async def worker(store, name):
    for number in range(100_000):
        id = f"{name}-{number}"
        store.open_row(row(id))
        await asyncio.gather(
            store.close_row(row(id, status="ok")),
            store.remember("t", taught(reply=f"a-{id}", compaction=compaction(f"u-{id}", 1)), NOW),
        )
        print(id, flush=True)
        store.open_row(row(f"open-{id}"))

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open(NOW)
    print("ready", flush=True)
    await asyncio.gather(*(worker(store, f"{sys.argv[2]}-{n}") for n in range(4)))

asyncio.run(main())
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


async def opened(path: Path, **more: bool) -> SqliteStore:
    store = SqliteStore(str(path), **more)
    await store.open(NOW)
    return store


async def refusal(path: Path) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await SqliteStore(str(path)).open(NOW)
    return refused.value.message


async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "weirgate.db", set()
    for life in range(3):
        process = start(WRITER, str(path), str(life))
        assert process.stdout is not None
        try:
            for _ in range(random.Random(life).randint(10, 60)):
                line = process.stdout.readline()
                assert line, "the writer ended by itself"
                acknowledged.add(line.strip())
        finally:
            process.send_signal(signal.SIGKILL)
            acknowledged |= {line.strip() for line in process.stdout.read().splitlines(keepends=True) if "\n" in line}
            process.stdout.close()
            process.wait(10)
    acknowledged.discard("ready")
    store = SqliteStore(str(path))
    lost = await store.open(NOW)
    rows = {found.id: found.status for found in await store.usage(UsageQuery(limit=100_000))}
    assert len(acknowledged) > 20
    assert {id for id in acknowledged if rows.get(id) != "ok"} == set()
    assert "open" not in rows.values()
    assert lost <= sum(status == "unknown" for status in rows.values())
    for id in acknowledged:
        memory = await store.recall("t", ask(f"a-{id}", f"u-{id}"), NOW)
        assert (memory.conversation, len(memory.compactions)) == ("conv_1", 1), id
    await store.close()
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plain.close()


async def test_rows_that_a_dead_process_left_open_are_closed_as_unknown(database: Path) -> None:
    with sqlite3.connect(database) as plain:
        columns = [found[1] for found in plain.execute("PRAGMA table_info(usage)")]
        value = {"status": "open", "opened_at": NOW, "day": 1, "input": 7}
        rows = [tuple(value.get(name, f"r{n}" if name == "id" else 0) for name in columns) for n in range(12_000)]
        plain.executemany(f"INSERT INTO usage VALUES ({','.join('?' * len(columns))})", rows)
        plain.execute("INSERT INTO lease VALUES ('t', x'01', 'dead', 9e99, NULL)")
    plain.close()
    store = SqliteStore(str(database))
    assert await store.open(NOW) == 12_000
    assert {(found.status, found.input) for found in await store.usage(UsageQuery(limit=20_000))} == {("unknown", 7)}
    assert await store.claim("t", b"\x01", "alive", NOW, 1)  # nobody else can hold one: the file is ours
    await store.close()


async def test_a_second_process_is_refused_with_the_reason(database: Path) -> None:
    process = start(WRITER, str(database), "first")
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        message = await refusal(database)
        assert "another process" in message
        assert str(process.pid) in message
    finally:
        process.kill()
        process.stdout.close()
        process.wait(10)
    await (await opened(database)).close()  # the kernel has freed the lock


async def test_nobody_else_can_open_the_file_while_it_is_served(database: Path) -> None:
    store = await opened(database)
    await store.close_row(row(status="ok"))
    plain = sqlite3.connect(database, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        plain.execute("SELECT count(*) FROM usage").fetchall()
    plain.close()
    await store.close()


async def test_a_file_that_another_program_holds_is_refused(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sqlite3.connect(database, isolation_level=None)
    plain.execute("PRAGMA locking_mode = EXCLUSIVE")
    plain.execute("BEGIN IMMEDIATE")
    store = SqliteStore(str(database), connect=lambda path: sqlite3.connect(path, timeout=0, isolation_level=None))
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await store.open(NOW)
    plain.close()
    await (await opened(database)).close()


async def test_a_file_deleted_while_it_is_served_is_noticed_and_not_made_again(database: Path) -> None:
    store = await opened(database)
    database.unlink()
    with pytest.raises(StoreUnavailable, match="gone"):
        await store.close_row(row(status="ok"))
    with pytest.raises(StoreUnavailable, match="gone"):
        await store.recall("t", ask("u1"), NOW)
    await store.close()
    assert "was here and is gone" in await refusal(database)
    assert not database.exists()


async def test_a_file_replaced_while_it_is_served_is_noticed(database: Path, migrated: Path) -> None:
    store = await opened(database)
    other = database.with_name("other.db")
    other.write_bytes(migrated.read_bytes())
    os.replace(other, database)
    with pytest.raises(StoreUnavailable, match="replaced"):
        await store.ready()
    await store.close()


@pytest.mark.parametrize("damage", ["head", "not a database", "schema"])
async def test_a_damaged_file_is_refused_and_left_as_it_is(database: Path, damage: str) -> None:
    content = bytearray(database.read_bytes())
    if damage == "head":
        content[:16] = b"\0" * 16
    elif damage == "schema":
        content[100:] = b"\xa5" * (len(content) - 100)
    else:
        content[:] = b"some notes of mine\n"
    database.write_bytes(content)
    message = await refusal(database)
    assert "not a SQLite database" in message or "damaged" in message
    assert database.read_bytes() == bytes(content)


async def test_a_file_emptied_after_it_was_used_is_refused(database: Path) -> None:
    await (await opened(database)).close()
    database.write_bytes(b"")
    assert "was here and is gone" in await refusal(database)


async def test_a_damaged_page_is_an_error_and_not_an_empty_answer(database: Path) -> None:
    store = await opened(database)
    for number in range(300):
        await store.close_row(row(f"row{number}", status="ok"))
    await store.close()
    content = bytearray(database.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle:] = b"\xa5" * (len(content) - middle)
    database.write_bytes(content)
    store = SqliteStore(str(database))
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.open(NOW)
        await store.usage(UsageQuery())
    await store.close()


async def test_a_database_that_cannot_be_written_says_so(database: Path) -> None:
    store = await opened(database)
    await store._thread.read(lambda connection: connection.execute("PRAGMA query_only = ON").fetchall())
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.close_row(row(status="ok"))
    await store._thread.read(lambda connection: connection.execute("PRAGMA query_only = OFF").fetchall())
    await store.close_row(row(status="ok"))
    await store.close()


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "folder" in await refusal(tmp_path / "missing" / "weirgate.db")


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    store = await opened(tmp_path / "weirgate.db")
    await store.close_row(row(status="ok"))
    found = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(found.values()) == {0o600}, found
    await store.close()


async def test_the_log_of_writes_stays_bounded(database: Path) -> None:
    store = await opened(database)
    text = "x" * 1_000_000
    for number in range(60):
        await store.remember("t", taught(results=(Stored(reference=f"r{number}", text=text),)), NOW)
    log = database.with_name("weirgate.db-wal").stat().st_size
    assert log < 24 * 1024 * 1024
    await store.close()
    assert {file.name for file in database.parent.iterdir()} == {"weirgate.db", "weirgate.db.lock"}


async def test_memory_is_found_again_after_a_restart(database: Path) -> None:
    store = await opened(database)
    secret = await store.secret("scope")
    await store.remember("t", taught(reply="a1", label="chat", compaction=compaction("u1", 1)), NOW)
    await store.close()
    again = await opened(database)
    memory = await again.recall("t", ask("u2", "a1", "u1", label="chat"), NOW)
    assert (memory.conversation, memory.compactions) == ("conv_1", (compaction("u1", 1),))
    assert await again.secret("scope") == secret
    await again.close()


async def test_without_content_at_rest_nothing_that_was_said_reaches_the_disk(database: Path) -> None:
    store = await opened(database, content=False)
    marker = "MARKER-of-content"
    what = taught(
        reply="a1",
        compaction=compaction("u1", 1, text=marker),
        hidden=hidden("u1", marker.encode()),
        results=(Stored(reference="r", text=marker * 1000),),
    )
    await store.remember("t", what, NOW)
    await store.close_row(row(status="ok"))
    assert await store.result("t", SCOPE, "r") == marker * 1000
    assert len((await store.recall("t", ask("a1", "u1", named=True), NOW)).hidden) == 1
    on_disk = b"".join(file.read_bytes() for file in database.parent.iterdir())
    assert marker.encode() not in on_disk
    await store.close()
    again = await opened(database, content=False)
    memory = await again.recall("t", ask("a1", "u1", named=True), NOW)
    assert (memory.conversation, memory.compactions, memory.hidden) == ("conv_1", (), ())
    await again.close()


async def test_content_that_is_held_in_memory_is_bounded(database: Path) -> None:
    store = await opened(database, content=False)
    text = "x" * 4_000_000
    for number in range(40):
        await store.remember("t", taught(results=(Stored(reference=f"r{number}", text=text),)), NOW + number)
    pages = await store._thread.read(
        lambda connection: [connection.execute(f"PRAGMA temp.{name}").fetchone()[0] for name in ("page_count",)]
    )
    assert pages[0] * 4096 < 80 * 1024 * 1024
    assert await store.result("t", SCOPE, "r39") == text
    assert await store.result("t", SCOPE, "r0") is None
    await store.close()


async def test_purge_reaches_content_written_before_it_was_forbidden(database: Path) -> None:
    store = await opened(database)
    await store.remember("t", taught(reply="a1", results=(Stored(reference="r", text="x"),)), NOW)
    await store.close()
    strict = await opened(database, content=False)
    assert await strict.result("t", SCOPE, "r") is None
    assert await strict.purge("t", NOW + 1) == 3
    await strict.close()
    store = await opened(database)
    assert await store.result("t", SCOPE, "r") is None
    await store.close()


def test_an_address_names_its_store() -> None:
    assert from_url("sqlite:///some.db")._file.path == os.path.realpath("some.db")
    assert from_url("sqlite:////tmp/some.db")._file.path == os.path.realpath("/tmp/some.db")
    assert from_url("sqlite://")._file.path == from_url("sqlite:///:memory:")._file.path == ":memory:"
    for wrong in ("postgresql://host/db", "some.db", "sqlite://some.db"):
        with pytest.raises(ValueError, match=r"store\.url"):
            from_url(wrong)
