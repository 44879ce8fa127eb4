"""Connections to PostgreSQL: who has one, for how long, and what becomes of it.

What belongs here: connecting, lending, transactions, and the bounds on all of them. What never: a statement of the
house, or asking twice. Failures come out as the driver's; `postgres_failures` says what they mean.

A connection is lent for one operation and never while anybody waits for a provider. One whose operation was cancelled,
ran out of time or lost its server is closed and never lent again: what it would say next belongs to nobody.

A pooler in transaction mode (PgBouncer) may give every transaction another server: settings then live in the
transaction, and statements have no names. It gives itself away by a process id that is not the server's. Without one,
settings are the session's and statements are prepared once.

It is not the driver's own pool: that one asks a reset of the server behind each loan (one more journey), and while the
database is gone everybody there waits for an attempt of his own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import asyncpg

from proxy.core.errors import StoreUnavailable
from proxy.store.postgres_failures import lost, unavailable

CONNECT: Final = 3.0
"""Seconds that connecting may take."""
PATIENCE: Final = 5.0
"""Seconds that an operation waits for a connection while others use them all."""
OPERATION: Final = 8.0
"""Seconds that an operation may take in all: the server ends its statements sooner."""
STALE: Final = 300.0
"""Seconds unused after which a connection is not trusted: something on the way may have forgotten it."""

LIMITS: Final[Mapping[str, str]] = {
    "statement_timeout": "5s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
}


class Connection(Protocol):
    """What of the driver's connection is used here."""

    async def execute(self, query: str, /, *args: object) -> str: ...
    async def executemany(self, command: str, args: Iterable[Sequence[object]]) -> None: ...
    async def fetch(self, query: str, /, *args: object) -> list[Any]: ...
    async def fetchval(self, query: str, /, *args: object) -> Any: ...
    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Sequence[object]], columns: Sequence[str]
    ) -> str: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def get_server_pid(self) -> int: ...


def changed(tag: str) -> int:
    """How many rows a statement changed, by the tag that it was answered with ("UPDATE 3", "INSERT 0 1")."""
    count = tag.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0


class CommitLost(ConnectionError):
    """Whether the transaction was committed is not known."""


class Pool:
    """At most `size` connections to `url`. `down` is why none can be made; while it stands, nobody waits. `pooled`:
    there is a pooler on the way."""

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._free = asyncio.Semaphore(size)
        self._idle: list[tuple[Connection, float]] = []
        self._parting: set[asyncio.Task[None]] = set()
        self._closed = False
        self.pooled = True
        self.down: StoreUnavailable | None = None

    async def start(self) -> None:
        """Connect for the first time, and find out what with. Raises StoreUnavailable."""
        connection = await self._connect()
        try:
            self.pooled = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
        finally:
            connection.terminate()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._part(self._idle.pop()[0])
        if self._parting:
            await asyncio.wait(self._parting)

    @asynccontextmanager
    async def connection(self, *, seconds: float = OPERATION, probing: bool = False) -> AsyncIterator[Connection]:
        """A connection for one operation. `probing` tries also while the database counts as down."""
        connection = await self._take(probing)
        whole = False
        try:
            async with asyncio.timeout(seconds):
                yield connection
            whole = True
        except Exception as failure:
            whole = not lost(failure) and not isinstance(failure, TimeoutError)
            raise
        finally:
            self._give(connection, whole)

    @asynccontextmanager
    async def transaction(self, *, seconds: float = OPERATION, **limits: str) -> AsyncIterator[Connection]:
        """One transaction: committed at the end of the block, taken back where it fails. `limits` replace LIMITS; where
        it may take longer than others, so may its statements."""
        if seconds > OPERATION:
            limits = {"statement_timeout": f"{int(seconds)}s", **limits}
        async with self.connection(seconds=seconds) as connection:
            await connection.execute(self._begin({**LIMITS, **limits} if self.pooled else limits))
            try:
                yield connection
            except Exception as failure:
                if not lost(failure) and not connection.is_closed():
                    await connection.execute("ROLLBACK")
                raise
            await _commit(connection)

    def _begin(self, limits: Mapping[str, str]) -> str:
        return "; ".join(["BEGIN", *(f"SET LOCAL {name} = '{value}'" for name, value in limits.items())])

    async def _take(self, probing: bool) -> Connection:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        if self.down is not None and not probing:
            raise StoreUnavailable(self.down.message, code=self.down.code)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable("All connections to the database are in use.") from None
        if (unused := self._unused()) is not None:
            return unused
        making = asyncio.get_running_loop().create_task(self._connect())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._made_for_nobody)
            raise
        except BaseException:
            self._free.release()
            raise

    def _made_for_nobody(self, making: asyncio.Task[Connection]) -> None:
        """Who wanted it gave up; the next one takes it."""
        if making.cancelled() or making.exception() is not None:
            self._free.release()
        else:
            self._give(making.result(), whole=True)

    def _unused(self) -> Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if not connection.is_closed() and time.monotonic() - since < STALE:
                return connection
            connection.terminate()
        return None

    def _give(self, connection: Connection, whole: bool) -> None:
        self._free.release()
        if whole and not self._closed and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append((connection, time.monotonic()))
        else:
            self._part(connection)

    def _part(self, connection: Connection) -> None:
        """Close it in the background: the driver tells the server first to stop what was cancelled."""
        task = asyncio.get_running_loop().create_task(_closed(connection))
        self._parting.add(task)
        task.add_done_callback(self._parting.discard)

    async def _connect(self) -> Connection:
        try:
            connection: Connection = await asyncpg.connect(
                self._url,
                timeout=CONNECT,
                statement_cache_size=0 if self.pooled else 256,
                server_settings={"application_name": "weirgate", **({} if self.pooled else LIMITS)},
            )
        except Exception as failure:
            error = unavailable(failure)
            if lost(failure) or isinstance(failure, TimeoutError):
                self.down = StoreUnavailable("The database cannot be reached.")
                raise StoreUnavailable(self.down.message) from None
            raise error from None
        self.down = None
        return connection


async def _commit(connection: Connection) -> None:
    try:
        tag = await connection.execute("COMMIT")
    except Exception as failure:
        if lost(failure):
            raise CommitLost("the connection was lost before the answer came") from failure
        raise
    if tag != "COMMIT":
        raise StoreUnavailable("The database took the transaction back.")


async def _closed(connection: Connection) -> None:
    try:
        await connection.close(timeout=CONNECT)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
