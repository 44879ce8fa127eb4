"""Which database the whole application is tested on: SQLite; with WEIRGATE_TEST_STORE=postgresql a server of our own.

    async with database(file) as url: store = from_url(url)

The same `file` is the same database again; without one it is a new one, gone afterwards. Tests that are about one
engine (its file, its failures) name it themselves and never ask here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest

from proxy.store import Store, schema
from proxy.store.address import from_url
from proxy.store.sqlite import SqliteStore

CHOICE = "WEIRGATE_TEST_STORE"
SERVER = "WEIRGATE_TEST_SERVER"
"""Set by `served`: up to the name of a database."""
_NEW = "engine"
"""An empty database at the newest schema, which others are copies of."""
_EMPTY = "; ".join(f'DELETE FROM "{table.name}"' for table in reversed(schema.metadata.sorted_tables))


def wanted() -> bool:
    """Whether a PostgreSQL is to be started for the tests of the application."""
    return os.environ.get(CHOICE) == "postgresql"


@contextlib.contextmanager
def served(server: Any) -> Iterator[None]:
    """From here on databases are those of `server` (a `postgres.Cluster`)."""

    async def make() -> None:
        store = from_url(server.create(_NEW))
        await store.open(1.0)
        await store.close()

    asyncio.run(make())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SERVER, server.url(""))
        yield
    server.drop(_NEW)


@contextlib.asynccontextmanager
async def database(file: Path | None = None, *, passing: bool = False) -> AsyncIterator[str]:
    """The address of a database. With `passing` it is gone afterwards, on a server, though it has a file's name."""
    server = os.environ.get(SERVER)
    if server is None:
        yield "sqlite://" if file is None else f"sqlite:///{file}"
        return
    name = f"w{token_hex(8)}" if file is None else _name(file)
    if not await said(f"{server}postgres", f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
        await _make(server, name)
    try:
        yield f"{server}{name}"
    finally:
        if file is None or passing:
            await _give_back(server, name)


async def _make(server: str, name: str) -> None:
    """A spare one, which is there at once, or a new one."""
    spare = await said(f"{server}postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'spare%' LIMIT 1")
    try:
        for (other,) in spare:
            await said(f"{server}postgres", f'ALTER DATABASE "{other}" RENAME TO "{name}"')
            return
    except asyncpg.PostgresError:
        pass  # somebody was faster
    await said(f"{server}postgres", f'CREATE DATABASE "{name}" TEMPLATE "{_NEW}"')


async def _give_back(server: str, name: str) -> None:
    try:
        connection = await asyncpg.connect(f"{server}{name}")
        try:
            await connection.execute(_EMPTY)
        finally:
            await connection.close()
        await said(f"{server}postgres", f'ALTER DATABASE "{name}" RENAME TO "spare{token_hex(8)}"')
    except asyncpg.PostgresError:  # the test has changed more than rows, or its connections are not gone yet
        await said(f"{server}postgres", f'DROP DATABASE "{name}" WITH (FORCE)')


async def said(url: str, sql: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def read(store: Store, url: str, sql: str) -> list[tuple[Any, ...]]:
    """What stands in the tables of `store`, which is at `url`: what it was told before is in them."""
    if isinstance(store, SqliteStore):  # where it works: a database in memory has one connection
        found: list[tuple[Any, ...]] = await store._thread.read(lambda db: list(map(tuple, db.execute(sql))))
        return found
    await store.opened()
    return await said(url, sql)


async def copy(file: Path, to: Path) -> None:
    """The database of `file`, which nobody uses, once more as that of `to`."""
    server = os.environ.get(SERVER)
    if server is None:
        shutil.copy(file, to)
    else:
        await said(f"{server}postgres", f'CREATE DATABASE "{_name(to)}" TEMPLATE "{_name(file)}"')


async def contents(file: Path) -> bytes:
    """All that lies in the database of `file`."""
    server = os.environ.get(SERVER)
    if server is None:
        return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))
    tables = [await said(f"{server}{_name(file)}", f'SELECT * FROM "{name}"') for name in schema.metadata.tables]
    values = (value for rows in tables for row in rows for value in row)
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)


def _name(file: Path) -> str:
    return f"w{blake2b(str(file).encode(), digest_size=8).hexdigest()}"
