"""Conversations that the gateway keeps, on SQLite.

What belongs here: performing the work of `owned_work` on the store's thread, inside its transaction. What never: what
the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from sqlite3 import Connection
from typing import TypeVar

from proxy.store import owned_work
from proxy.store.conversations import Making
from proxy.store.group_commit import GroupCommit, Kind
from proxy.store.owned_work import At, Told

T = TypeVar("T")
Statements = Mapping[str, str]


def perform(connection: Connection, sql: Statements, making: Making[T]) -> T:
    """Do the work, and say what it came to."""
    work = making()
    try:
        ask = next(work)
        while True:
            cursor = connection.execute(sql[ask.name], ask.values)
            ask = work.send(Told(rows=cursor.fetchall(), changed=cursor.rowcount))
    except StopIteration as done:
        result: T = done.value
        return result


def purge(connection: Connection, sql: Statements, tenant: str, before: float) -> tuple[int, int]:
    """Delete some that were last used before `before`: how many, and how many rows went."""
    return perform(connection, sql, lambda: owned_work.purge(tenant, before))


class OnThread:
    """See `conversations.Database`. Belongs to the store whose thread it works on, where everything comes behind what
    was queued before."""

    def __init__(self, thread: GroupCommit, sql: Statements) -> None:
        self._thread = thread
        self._sql = sql

    async def read(self, at: At | None, making: Making[T]) -> T:
        return await self._thread.read(lambda connection: perform(connection, self._sql, making))

    async def write(self, at: At, making: Making[T]) -> T:
        return await self._thread.write(lambda connection: perform(connection, self._sql, making))

    def queue(self, at: At, making: Making[None]) -> asyncio.Future[None]:
        return self._thread.submit(Kind.WRITE, lambda connection: perform(connection, self._sql, making))
