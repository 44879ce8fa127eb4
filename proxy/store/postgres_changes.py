"""Bringing a PostgreSQL database to the schema of this version.

What belongs here: which changes are due, and running them (`postgres_statements`) one process at a time. What never:
what a change does. All of them are one transaction: whole, or not at all. The lock belongs to the transaction, so it
works behind a pooler and nobody has to give it back.
"""

from __future__ import annotations

from typing import Final

from proxy.store import migrations
from proxy.store.postgres_pool import Connection, Pool
from proxy.store.postgres_statements import Compiled

LOCK: Final = 0x77656972
"""The advisory lock that whoever changes tables holds."""
_PATIENCE: Final = 600.0
"""Seconds for all of it: a change may rewrite a large table."""


async def upgrade(pool: Pool, compiled: Compiled, *, allowed: bool) -> tuple[str | None, str]:
    """(where the database stood, where it stands). Refuses one that a newer version made, and, where it is not
    `allowed` to change anything, one that is behind."""
    async with pool.connection() as connection:
        before = await _version(connection)
    if before == compiled.head:
        return before, before
    migrations.refuse(before, allowed=allowed)
    async with pool.transaction(
        seconds=_PATIENCE, statement_timeout="0", lock_timeout="60s", idle_in_transaction_session_timeout="60s"
    ) as connection:
        await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        before = await _version(connection)  # another process may have done it meanwhile
        migrations.refuse(before, allowed=allowed)
        for number, script in compiled.changes.items():
            if before is None or number > before:
                await connection.execute(script)
    return before, compiled.head


async def _version(connection: Connection) -> str | None:
    """The change that the database stands at; None where it is empty."""
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return None
    found: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    return found
