"""The numbered changes of the schema, run forward only.

What belongs here: one file per change under `versions/`, which never changes after its release, and running them over
a connection somebody else opened. What never: reading `schema` in a migration: it says how things are today.
A change first adds and only in a later release removes, so that two versions can run during an update.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from proxy.core.errors import StoreUnavailable
from proxy.store.statements import compiled

HEAD = "0005"
"""The newest change. A database that stands there needs no alembic, which takes longer to import than a whole start."""

_FOLDER = Path(__file__).parent


def upgrade(connection: sqlite3.Connection, *, allowed: bool = True) -> None:
    """Bring an open SQLite database up to date; all of it or nothing. Refuse one that is not at this version's schema
    and may not be brought there."""
    at = _version(connection)
    if at == HEAD:
        return
    refuse(at, allowed=allowed)
    made = compiled()
    if made.head == HEAD and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        _make(connection, made.schema)
    else:
        migrate(connection)


def refuse(at: str | None, *, allowed: bool) -> None:
    """Raise StoreUnavailable where a database that stands at `at` (None: empty) may not be changed to HEAD: a newer
    version made it, or it is not `allowed` (`store.migrate`)."""
    if at is not None and at not in known():
        raise StoreUnavailable(f"The database was written by a newer Weirgate (schema {at}, here {HEAD}).")
    if not allowed:
        stands = "is empty" if at is None else f"is at schema {at}"
        raise StoreUnavailable(
            f"The database {stands}, this version needs {HEAD}, and store.migrate is false: run `weirgate db upgrade`."
        )


def _make(connection: sqlite3.Connection, texts: tuple[str, ...]) -> None:
    """An empty database needs no changes, but what they lead to; a test holds the two together."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for text in texts:
            connection.execute(text)
        connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (HEAD,))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrate(connection: sqlite3.Connection, to: str = "head") -> None:
    """Run every change up to `to` that the database has not seen; all of them or none."""
    # Here, because a start that has nothing to change does without: they take longer to import than all the rest.
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    config = Config()
    config.set_main_option("script_location", _FOLDER.as_posix().replace("%", "%%"))
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    try:
        with engine.connect() as opened:
            # Said here: connecting has asked the driver this and that, and rolled back.
            opened.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = opened
            command.upgrade(config, to)
            opened.commit()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def known() -> frozenset[str]:
    """The numbers of all changes that this version knows."""
    return frozenset(file.stem[1:5] for file in (_FOLDER / "versions").glob("m????_*.py"))


def _version(connection: sqlite3.Connection) -> str | None:
    """The change that the database stands at; None where it is empty."""
    there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'alembic_version'").fetchone()
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if there else None
    return None if row is None else str(row[0])
