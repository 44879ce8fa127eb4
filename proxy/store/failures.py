"""What a failure of SQLite means to the house.

What belongs here: error codes and the one error the store raises. What never: SQLite's own text (it may quote a value),
or a decision what to do about it. Codes: https://sqlite.org/rescode.html.
"""

from __future__ import annotations

import sqlite3

from proxy.core.errors import StoreUnavailable, WeirgateError

_REASONS = (
    ((sqlite3.SQLITE_FULL,), "storage_full", "The database cannot grow: the disk is full."),
    ((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), None, "The database is locked by another process."),
    ((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), None, "The database cannot be written: it is read-only."),
    ((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), None, "The database file is damaged; restore it from a backup."),
    ((sqlite3.SQLITE_CANTOPEN,), None, "The database file cannot be opened."),
    ((sqlite3.SQLITE_IOERR,), None, "The disk of the database reports an error."),
)
_FOR_ALL = frozenset(code for codes, stable, _ in _REASONS if stable is None for code in codes)


def primary_code(failure: BaseException) -> int | None:
    """SQLite's primary result code; None where the failure is not SQLite's."""
    code = getattr(failure, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def concerns_all(failure: BaseException) -> bool:
    """Whether every other write would meet it too: trying them one by one would only take longer."""
    return isinstance(failure, StoreUnavailable) or primary_code(failure) in _FOR_ALL


def is_full(failure: BaseException) -> bool:
    """Whether the disk has no room left for this write; for a smaller one it may."""
    return primary_code(failure) == sqlite3.SQLITE_FULL


def unavailable(failure: BaseException) -> WeirgateError:
    """The house's error for it. Errors of ours pass as they are."""
    if isinstance(failure, WeirgateError):
        return failure
    code = primary_code(failure)
    for codes, stable, reason in _REASONS:
        if code in codes:
            return StoreUnavailable(reason, code=stable)
    if isinstance(failure, sqlite3.Error | OSError):
        name = getattr(failure, "sqlite_errorname", type(failure).__name__)
        return StoreUnavailable(f"The database could not be read or written ({name}).")
    return StoreUnavailable("The database did not take what it was given.", retry=False)
