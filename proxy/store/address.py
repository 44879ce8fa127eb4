"""Which store an address names.

What belongs here: choosing, and how an address may be shown. What never: connecting. PostgreSQL's driver is imported
only where an address asks for it.
"""

from __future__ import annotations

from proxy.store.owned import KeepingStore
from proxy.store.sqlite import from_url as sqlite_from_url

_POSTGRES = ("postgresql://", "postgres://")


def is_postgres(url: str) -> bool:
    return url.startswith(_POSTGRES)


def from_url(url: str, *, content: bool = True, migrate: bool = True, connections: int = 10) -> KeepingStore:
    """The store at `url`: PostgreSQL, or SQLite (see `sqlite.from_url`). Raises ValueError for any other address.

    With `content` False, what people and models said is kept in memory only. With `migrate` False a database that is
    not at this version's schema is refused. `connections` bounds those of this process to PostgreSQL.
    """
    if not is_postgres(url):
        return sqlite_from_url(url, content=content, migrate=migrate)
    from proxy.store.postgres import PostgresStore
    from proxy.store.postgres_unwritten import UnwrittenStore

    return (PostgresStore if content else UnwrittenStore)(url, migrate=migrate, connections=connections)


def shown(url: str) -> str:
    """The address as it may be told: without user, password and options."""
    if not is_postgres(url):
        return url
    where, _, options = url.partition("://")[2].partition("?")
    if "@" in options:
        # Perhaps a password with a question mark in it, of which the half would be shown.
        return "postgresql://***"
    return f"postgresql://{where.rpartition('@')[2]}"
