"""Behind PgBouncer in transaction mode, where every transaction may have another server, the store behaves alike."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.store import UsageQuery
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_pool import LIMITS
from tests.conftest import IN_CI
from tests.postgres import USER, Cluster, free_port, unprivileged
from tests.store.samples import NOW, anchor, ask, compaction, row, taught

_STARTS = 20.0


def bouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture(scope="module")
def pooled(server: Cluster) -> Iterator[str]:
    """The address of the database `shared` through a pooler that has three connections to it."""
    command = bouncer()
    if command is None:
        assert not IN_CI, "no PgBouncer: `apt-get install pgbouncer`"
        pytest.skip("no PgBouncer: `apt-get install pgbouncer`")
    port, folder = free_port(), server.folder / "bouncer"
    server._run(["mkdir", str(folder)])
    file = Path(f"{folder}.ini")
    file.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\nserver_round_robin = 1\n"
    )
    os.chmod(file, 0o644)
    # It ends with the pipe, so also where the tests are killed.
    serving = f"{shlex.join(unprivileged([command, '-q', str(file)]))} & read _; kill $!; wait $!"
    process = subprocess.Popen(["sh", "-c", serving], stdin=subprocess.PIPE, cwd=folder, start_new_session=True)
    ends = time.monotonic() + _STARTS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        assert process.poll() is None and time.monotonic() < ends
    yield f"postgresql://{USER}@127.0.0.1:{port}/shared"
    process.communicate(timeout=_STARTS)


@pytest.fixture
async def store(pooled: str, shared: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(pooled, connections=8)
    await opened.open(NOW)
    assert opened._pool.pooled
    yield opened
    await opened.close()


async def test_a_server_that_is_reached_directly_is_not_taken_for_a_pooler(shared: str) -> None:
    opened = PostgresStore(shared)
    await opened.open(NOW)
    assert not opened._pool.pooled
    assert "directly" in (await opened.engine()).name
    await opened.close()


async def test_many_calls_at_once_through_few_servers(store: PostgresStore) -> None:
    async def call(number: int) -> None:
        store.open_row(row(f"row{number}"))
        what = taught(reply=f"a{number}", request=f"u{number}", anchor=anchor(number), conversation=f"c{number}")
        await store.remember("t", what, NOW)
        memory = await store.recall("t", ask(f"a{number}", f"u{number}"), NOW)
        assert (memory.conversation, memory.anchor) == (f"c{number}", anchor(number))
        assert await store.claim("t", f"k{number}".encode(), "me", NOW, 10)
        await store.close_row(row(f"row{number}", status="ok"))

    await asyncio.gather(*(call(number) for number in range(100)))
    assert len(await store.usage(UsageQuery())) == 100
    await store.remember("t", taught(compaction=compaction("u1", 1)), NOW)
    assert len((await store.recall("t", ask("u1"), NOW)).compactions) == 1
    assert "through a pooler" in (await store.engine()).name


async def test_a_transaction_brings_its_own_limits_and_leaves_none_behind(store: PostgresStore) -> None:
    async with store._pool.transaction() as connection:
        found = {name: await connection.fetchval(f"SHOW {name}") for name in LIMITS}
    assert found == dict(LIMITS)
    for _ in range(6):  # more than there are servers
        async with store._pool.connection() as connection:
            assert await connection.fetchval("SHOW statement_timeout") == "0"


async def test_what_may_take_longer_is_given_longer_with_and_without_a_pooler(pooled: str, shared: str) -> None:
    for url in (pooled, shared):
        store = PostgresStore(url)
        await store.open(NOW)
        async with store._pool.transaction() as connection:
            assert await connection.fetchval("SHOW statement_timeout") == "5s"
        async with store._pool.transaction(seconds=60) as connection:
            assert await connection.fetchval("SHOW statement_timeout") == "1min"
        await store.close()


async def test_what_takes_too_long_is_ended_by_the_server_and_said(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable, match="took too long"):
        async with store._writing() as connection:
            await connection.execute("SET LOCAL statement_timeout = '50ms'")
            await connection.execute("SELECT pg_sleep(30)")
    await store.ready()
