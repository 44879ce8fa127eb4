"""This process among the others on one database: that it lives, and what becomes of those that do not.

What belongs here: the beat, what is done beside it now and then, and coming back after the database was gone. What
never: a call's own work.

Every process writes when it was last seen, by the database's clock. One that was silent for DEAD seconds counts as
dead: its open rows are closed as `unknown`, its leases are free. Who was cut off from the database himself judges
nobody before all have had the time to come back; and should one that was thought dead close its row after all, its word
stands.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import asyncpg

from proxy.core.errors import StoreUnavailable
from proxy.logs import log
from proxy.store import postgres_months
from proxy.store.postgres_commit import GroupWriter
from proxy.store.postgres_failures import unavailable
from proxy.store.postgres_pool import Pool, changed
from proxy.store.postgres_statements import DEAD, PostgresStatements

BEAT: Final = 2.0
"""Seconds between two signs of life."""
RETRY: Final = 0.25
"""Seconds between two looks for a database that is gone."""
_HOUR: Final = 3600.0


class Presence:
    """`trouble` is set by whoever meets a failure: the next look is then due soon."""

    def __init__(self, pool: Pool, sql: PostgresStatements, writer: GroupWriter, instance: str, trouble: asyncio.Event):
        self._pool = pool
        self._sql = sql
        self._writer = writer
        self._instance = instance
        self._trouble = trouble
        self._seen = self._steady = time.monotonic()
        self._tidied = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    async def start(self, now: float) -> int:
        """Be seen, and close the rows of the dead; returns how many. `now` is unix seconds."""
        await self.beat()
        await self._make_months(now)
        lost = await self._reap()
        self._task = asyncio.get_running_loop().create_task(self._live(), name="weirgate-presence")
        return lost

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        try:
            async with self._pool.connection() as connection:
                await connection.execute(self._sql.leave, self._instance)
        except (OSError, StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError):
            return  # the others will see it by its silence

    async def beat(self) -> None:
        """Write a sign of life: also the proof that the database can be written. Raises what the driver does."""
        async with self._pool.connection(probing=True) as connection:
            await connection.execute(self._sql.beat, self._instance)
        now = time.monotonic()
        if now - self._seen > DEAD / 2:
            self._steady = now
        self._seen = now

    async def _live(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RETRY if self._writer.failing is not None else BEAT):
                    await self._trouble.wait()
                self._trouble.clear()
                await asyncio.sleep(RETRY)
            except TimeoutError:
                pass
            try:
                await self.beat()
            except Exception as failure:
                self._writer.failing = unavailable(failure)
                continue
            if self._writer.failing is not None:
                self._writer.recovered()
            try:
                await self._look_round()
            except Exception as failure:
                reason = unavailable(failure).message
                await asyncio.to_thread(log, "warning", "what dead processes left was not looked for", reason=reason)

    async def _look_round(self) -> None:
        if time.monotonic() - self._steady >= DEAD and (lost := await self._reap()):
            await asyncio.to_thread(log, "warning", "closed rows that a dead process left open", rows=lost)
        if time.monotonic() - self._tidied >= _HOUR:
            self._tidied = time.monotonic()
            async with self._pool.connection() as connection:
                await connection.execute(self._sql.forget_dead)
            await self._make_months(time.time())

    async def _reap(self) -> int:
        lost = 0
        while True:
            async with self._pool.connection() as connection:
                some = changed(await connection.execute(self._sql.reap))
            lost += some
            if not some:
                return lost

    async def _make_months(self, now: float) -> None:
        """Where it cannot be done (no right to make tables, somebody holds one), rows go to the default meanwhile."""
        try:
            await postgres_months.make(self._pool, now)
        except Exception as failure:
            reason = unavailable(failure).message
            await asyncio.to_thread(log, "warning", "the months of the usage rows could not be made", reason=reason)
