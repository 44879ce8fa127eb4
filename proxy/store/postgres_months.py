"""Usage rows by month: a table of its own for each, made ahead, and dropped whole when retention has passed it.

What belongs here: which months there must be, making and dropping them. What never: a single row, but for those that
stand in `usage_default` because their month was not there when they came: they move to it when it is made.

A table for a month is made first and attached then: that locks the others for a moment only. Names and bounds are made
of numbers, so no value of anybody's reaches these texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from proxy.store.postgres_changes import LOCK
from proxy.store.postgres_pool import Connection, Pool

AHEAD: Final = 2
"""Months made beyond the running one."""
_NAME: Final = re.compile(r"usage_(\d{4})_(\d{2})")
_EXISTING: Final = (
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
    " WHERE inhparent = to_regclass('usage') ORDER BY child.relname"
)
_ABOUT: Final = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($1)"
_MANY: Final = 1_000_000


class Month(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A calendar month, UTC."""

    year: int
    month: int

    @property
    def name(self) -> str:
        return f"usage_{self.year:04d}_{self.month:02d}"

    @property
    def next(self) -> Month:
        return Month(year=self.year + self.month // 12, month=self.month % 12 + 1)

    @property
    def start(self) -> float:
        """Unix seconds."""
        return datetime(self.year, self.month, 1, tzinfo=UTC).timestamp()


def month_of(seconds: float) -> Month:
    at = datetime.fromtimestamp(seconds, UTC)
    return Month(year=at.year, month=at.month)


async def make(pool: Pool, now: float) -> int:
    """Make the months that are missing, from the one of `now` on; how many were made."""
    wanted = list(_ahead(month_of(now)))
    async with pool.connection() as connection:
        there = await _existing(connection)
    if there.issuperset(wanted):
        return 0
    made = 0
    for month in wanted:
        async with pool.transaction(lock_timeout="3s", statement_timeout="0", seconds=60.0) as connection:
            await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
            if month not in await _existing(connection):
                await connection.execute(_making(month))
                made += 1
    return made


async def drop(pool: Pool, before: float) -> int:
    """Drop the months that ended before `before`, but for one in which a call still runs; how many rows went (of many,
    about how many)."""
    async with pool.connection() as connection:
        old = sorted(month for month in await _existing(connection) if month.next.start <= before)
    gone = 0
    for month in old:
        async with pool.transaction(lock_timeout="3s", statement_timeout="0", seconds=60.0) as connection:
            await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
            if month not in await _existing(connection):
                continue  # another process was here
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {month.name} WHERE status = 'open')"):
                continue
            rows = await connection.fetchval(_ABOUT, month.name)
            gone += rows if rows > _MANY else await connection.fetchval(f"SELECT count(*) FROM {month.name}")
            await connection.execute(f"DROP TABLE {month.name}")
    return gone


def _ahead(month: Month) -> Iterator[Month]:
    for _ in range(AHEAD + 1):
        yield month
        month = month.next


async def _existing(connection: Connection) -> frozenset[Month]:
    found = [_NAME.fullmatch(row[0]) for row in await connection.fetch(_EXISTING)]
    return frozenset(Month(year=int(name[1]), month=int(name[2])) for name in found if name is not None)


def _making(month: Month) -> str:
    name, start, end = month.name, month.start, month.next.start
    within = f"opened_at >= {start} AND opened_at < {end}"
    return "; ".join(
        (
            f"CREATE TABLE {name} (LIKE usage INCLUDING DEFAULTS)",
            f"WITH moved AS (DELETE FROM usage_default WHERE {within} RETURNING *)"
            f" INSERT INTO {name} SELECT * FROM moved",
            f"ALTER TABLE usage ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})",
        )
    )
