"""Conversations that the gateway keeps, on PostgreSQL.

What belongs here: performing the work of `owned_work`, what writes in a transaction of its own. What never: what the
work is. Who writes on a conversation first locks its row, so that of several processes one after the other does; what
the lock waited for may have moved the head, so it is read after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

from proxy.core.errors import StoreUnavailable
from proxy.store import owned_work
from proxy.store.conversations import Making
from proxy.store.owned_work import PURGED, At, Told
from proxy.store.postgres_commit import GroupWriter
from proxy.store.postgres_failures import contested, lost, unavailable
from proxy.store.postgres_pool import CommitLost, Connection, Pool, changed
from proxy.store.postgres_rows import plain

T = TypeVar("T")
Lent = Callable[[], AbstractAsyncContextManager[Connection]]
_TRIES: Final = 3


class InTransactions:
    """See `conversations.Database`. `writer` knows what of this process is on its way to the database."""

    def __init__(self, pool: Pool, writer: GroupWriter, sql: Mapping[str, str]) -> None:
        self._pool = pool
        self._writer = writer
        self._sql = sql
        self._queued: set[asyncio.Task[None]] = set()

    async def read(self, at: At | None, making: Making[T]) -> T:
        if at is not None:
            await self._writer.settled(at)
        return await self._tried(self._pool.connection, making)  # what changes nothing needs no transaction

    async def write(self, at: At, making: Making[T]) -> T:
        if (failing := self._writer.failing) is not None:
            raise StoreUnavailable(failing.message, code=failing.code)
        return await self._written(at, making, self._writer.before(at), self._writer.expect(at))

    async def _written(
        self, at: At, making: Making[T], before: list[asyncio.Future[None]], written: asyncio.Future[None]
    ) -> T:
        """In the order in which this process asked for it."""
        try:
            if before:
                await asyncio.wait(before)
            return await self._tried(self._pool.transaction, making, at)
        finally:
            written.set_result(None)

    def queue(self, at: At, making: Making[None]) -> asyncio.Future[None]:
        # No await lies between: whoever reads from here on comes behind it.
        writing = self._written(at, making, self._writer.before(at), self._writer.expect(at))
        task = asyncio.get_running_loop().create_task(writing)
        self._queued.add(task)
        task.add_done_callback(self._done)
        return asyncio.shield(task)

    async def purge(self, tenant: str, before: float) -> int:
        """Delete those last used before `before`, some at a time; how many rows went."""
        gone = 0
        while True:
            some, rows = await self._tried(self._pool.transaction, lambda: owned_work.purge(tenant, before))
            gone += rows
            if some < PURGED:
                return gone

    async def drain(self) -> None:
        """Wait until what was queued is written."""
        if self._queued:
            await asyncio.wait(self._queued)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._queued.discard(task)
        if not task.cancelled():
            task.exception()  # told to who waits, if somebody does

    async def _tried(self, lent: Lent, making: Making[T], locked: At | None = None) -> T:
        """Again where the connection was lost or two stood in each other's way; not where it may be done already."""
        for left in reversed(range(_TRIES)):
            try:
                async with lent() as connection:
                    if locked is not None:
                        await connection.execute(self._sql["lock"], *_values(locked))
                    return await self._performed(connection, making)
            except Exception as failure:
                again = contested(failure) or (lost(failure) and not isinstance(failure, CommitLost))
                if not left or not again:
                    raise unavailable(failure) from None
        raise AssertionError("the last try raises")

    async def _performed(self, connection: Connection, making: Making[T]) -> T:
        work = making()
        try:
            ask = next(work)
            while True:
                text = self._sql[ask.name]
                if text.startswith("SELECT"):
                    told = Told(rows=await connection.fetch(text, *_values(ask.values)), changed=0)
                else:
                    told = Told(rows=(), changed=changed(await connection.execute(text, *_values(ask.values))))
                ask = work.send(told)
        except StopIteration as done:
            result: T = done.value
            return result


def _values(given: Sequence[object]) -> list[object]:
    return [plain(value) if isinstance(value, str) else value for value in given]
