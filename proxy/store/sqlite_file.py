"""Opening the database file: its lock, its settings, its schema.

What belongs here: all that happens before the first caller is served, and what makes sure that the file is still there.
What never: a caller's rows. A file that is damaged, gone, or another process's is refused with the reason; it is never
replaced by an empty one.

Settings and why: WAL with synchronous=FULL (a commit is on the disk before it is acknowledged), locking_mode=EXCLUSIVE
(no second connection ever: SQLite before 3.51.3 can lose a WAL to one), a WAL cut back to 16 MiB by checkpoints of
this connection alone, incremental vacuum for what a purge frees. https://sqlite.org/pragma.html, wal.html
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path

from proxy.core.errors import StoreUnavailable
from proxy.store import migrations
from proxy.store.statements import CONTENT, Statements

MEMORY = ":memory:"

Connect = Callable[[str], sqlite3.Connection]

_MAGIC = b"SQLite format 3\0"
_WAL_BYTES = 16 * 1024 * 1024
_CHUNK = 5_000

_CLOSE_LOST = (
    "UPDATE usage SET status = 'unknown' WHERE rowid IN (SELECT rowid FROM usage WHERE status = 'open' LIMIT ?)"
)


def connect(path: str) -> sqlite3.Connection:
    """The driver's connection, with transactions in our hands."""
    # The driver asks what is no int, float or str whether it wants to be bound as something else, and throws away the
    # error that it gets for an answer: half of a usage row's price. These say at once: as what they are.
    sqlite3.register_adapter(type(None), dict[None, None]().get)
    sqlite3.register_adapter(bool, int)
    sqlite3.register_adapter(bytes, bytes)
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, cached_statements=256)


class DatabaseFile:
    """The file at `path`, held by this process from `open` to `release`."""

    def __init__(self, path: str, *, content: bool, migrate: bool = True, connect: Connect = connect) -> None:
        self.path = path if path == MEMORY else os.path.realpath(path)
        self._content = content
        self._migrate = migrate
        self._connect = connect
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def open(self, sql: Statements) -> tuple[sqlite3.Connection, int]:
        """(the connection, how many rows a dead process had left open)."""
        new = False
        if self.path != MEMORY:
            self._take_lock()
            new = self._inspect()
        try:
            connection = self._connect(self.path)
            try:
                lost = self._prepare(connection, sql)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            if new:
                self._remove_empty()
            self.release()
            raise
        return connection, lost

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Raise where the file was deleted or replaced under us: SQLite would go on writing to what nobody can read."""
        if self._identity is None:
            return
        try:
            there = os.stat(self.path)
        except OSError:
            raise StoreUnavailable("The database file is gone; it was deleted or moved while it was in use.") from None
        if (there.st_dev, there.st_ino) != self._identity:
            raise StoreUnavailable("The database file was replaced while it was in use.")

    # -- before the first statement ----------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """A lock file beside the database. The kernel frees it when the process ends, however it ends."""
        try:
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise StoreUnavailable(f"The folder of the database cannot be written: {failure.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode("ascii", "replace").split(" ")[0].strip()
            self.release()
            raise StoreUnavailable(
                f"The database {self.path} is in use by another process"
                f"{f' ({holder})' if holder else ''}: SQLite serves one. Stop it, or use its admin API."
            ) from None

    def _inspect(self) -> bool:
        """Refuse a file that is not ours to open. True: there is none yet, and an empty one was made."""
        assert self._lock is not None
        file = Path(self.path)
        marked = b" made" in os.read(self._lock, 64)
        if not file.exists():
            if marked or Path(f"{self.path}-wal").exists():
                raise self._gone()
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return True
        with file.open("rb") as opened:
            head = opened.read(len(_MAGIC))
        if head == b"" and marked:
            raise self._gone()
        if head not in (b"", _MAGIC):
            raise StoreUnavailable(f"{self.path} is not a SQLite database, or its head is damaged.")
        return False

    def _gone(self) -> StoreUnavailable:
        self.release()
        return StoreUnavailable(
            f"The database {self.path} was here and is gone. Restore it; to begin with an empty one, delete "
            f"{self.path}.lock and {self.path}-wal too."
        )

    def _remove_empty(self) -> None:
        if os.path.getsize(self.path) == 0:
            os.unlink(self.path)

    def _mark(self) -> None:
        """Note in the lock file that the database was made, and by whom it is held."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()} made\n".encode("ascii"), 0)
            there = os.stat(self.path)
            self._identity = (there.st_dev, there.st_ino)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _prepare(self, connection: sqlite3.Connection, sql: Statements) -> int:
        self._settings(connection)
        migrations.upgrade(connection, allowed=self._migrate or self.path == MEMORY)
        if not self._content:
            _content_in_memory(connection)
        lost = _close_lost(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM lease")  # nobody who held one is alive: the file is ours
        connection.execute("UPDATE owned SET run = NULL, run_until = NULL, version = version + 1 WHERE run IS NOT NULL")
        connection.execute("DELETE FROM interjection")
        secret(connection, sql, "scope")
        connection.execute("COMMIT")
        self._mark()
        return lost

    def _settings(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if self.path != MEMORY and mode != "wal":
            raise StoreUnavailable("The file system of the database cannot keep a write-ahead log.")
        for setting in (
            "synchronous = FULL",
            "wal_autocheckpoint = 1000",
            f"journal_size_limit = {_WAL_BYTES}",
            "temp_store = MEMORY",
            "cache_size = -16384",
            "cell_size_check = ON",
            "trusted_schema = OFF",
        ):
            connection.execute(f"PRAGMA {setting}")


def finish(connection: sqlite3.Connection) -> None:
    """Close, leaving one tidy file. All is committed before: a failure here loses nothing."""
    try:
        connection.execute("PRAGMA optimize")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:
        return
    finally:
        connection.close()


def secret(connection: sqlite3.Connection, sql: Statements, purpose: str) -> bytes:
    """Insert or ignore, then read: whoever comes first decides, and all agree."""
    connection.execute(sql.add["secret"], (purpose, secrets.token_bytes(32)))
    value: bytes = connection.execute(sql.secret, (purpose,)).fetchone()[0]
    return value


def _close_lost(connection: sqlite3.Connection) -> int:
    """Rows that a dead process left open, some thousands at a time (an index holds the open ones)."""
    lost = 0
    while (changed := connection.execute(_CLOSE_LOST, (_CHUNK,)).rowcount) > 0:
        lost += changed
    return lost


def _content_in_memory(connection: sqlite3.Connection) -> None:
    """No content at rest: temporary tables of the same names, kept in memory, stand before the file's.

    SQLite resolves a plain name in `temp` first, so that every statement serves both ways.
    """
    for name in CONTENT:
        texts = connection.execute(
            "SELECT sql FROM main.sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL", (name,)
        ).fetchall()
        for (text,) in texts:
            connection.execute(_temporary(text))


def _temporary(text: str) -> str:
    for start in ("CREATE TABLE ", "CREATE INDEX "):
        if text.startswith(start):
            name = text.removeprefix(start)
            return f"CREATE TEMP TABLE {name}" if "TABLE" in start else f"CREATE INDEX temp.{name}"
    raise StoreUnavailable("The schema of the database is not the one this version makes.")


PLACES = tuple(
    f"SELECT rowid, {column} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT 2000"
    for table, column in (
        ("reply", "digest"),
        ("compaction", "digest"),
        ("hidden", "digest"),
        ("hidden", "coalesce(reply, digest)"),
    )
)
"""Every shown prefix that something is stored at, in slices."""
