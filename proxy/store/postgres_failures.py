"""What a failure of PostgreSQL, or of the way to it, means to the house.

What belongs here: SQLSTATEs and the one error the store raises. What never: PostgreSQL's own text (it may quote a
value), the address (it holds a password), or a decision what to do about it.
Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html.
"""

from __future__ import annotations

import asyncpg

from proxy.core.errors import StoreUnavailable, WeirgateError

FORBIDDEN = "42501"

_REASONS = (
    (("53100",), "storage_full", "The database cannot grow: its disk is full."),
    (("53300",), None, "The database takes no more connections."),
    (("53",), None, "The database is short of memory or disk."),
    (("57014",), None, "The database took too long."),
    (("55P03",), None, "The database is locked by another process."),
    (("40",), None, "The database met with too many writers at once."),
    (("25006",), None, "The database cannot be written: it is read-only."),
    ((FORBIDDEN,), None, "The database user lacks a right that Weirgate needs."),
    (("28",), None, "The database does not accept the user or the password."),
    (("3D000",), None, "There is no database of that name."),
    (("42P01", "42703"), None, "A table of the database is not as this version makes it: run `weirgate db upgrade`."),
    (("08", "57P"), None, "The database cannot be reached."),
)
_GIVEN = ("22", "23")
"""Classes of errors that what was given is to blame for; another try would meet the same."""
_AGAIN = frozenset(("40001", "40P01"))


def code_of(failure: BaseException) -> str:
    """The SQLSTATE; "" where the server did not say one."""
    code = getattr(failure, "sqlstate", None)
    return code if isinstance(code, str) else ""


def lost(failure: BaseException) -> bool:
    """Whether the connection is gone, and another one may do."""
    if isinstance(failure, asyncpg.InterfaceError):
        return "closed" in str(failure)
    if isinstance(failure, asyncpg.InternalClientError):
        return True  # the driver does not know where it stands
    if isinstance(failure, OSError):
        return not isinstance(failure, TimeoutError)
    return code_of(failure).startswith(("08", "57P"))


def contested(failure: BaseException) -> bool:
    """Whether two transactions stood in each other's way, and the same again will do."""
    return code_of(failure) in _AGAIN


def concerns_all(failure: BaseException) -> bool:
    """Whether every other write would meet it too: trying them one by one would only take longer."""
    if isinstance(failure, StoreUnavailable | OSError) or lost(failure):
        return True
    return code_of(failure).startswith(("53", "57", "55P03", "28", "3D", "25006", FORBIDDEN, "42P01", "42703"))


def unavailable(failure: BaseException) -> WeirgateError:
    """The house's error for it. Errors of ours pass as they are."""
    if isinstance(failure, WeirgateError):
        return failure
    if isinstance(failure, TimeoutError):
        return StoreUnavailable("The database took too long.")
    code = code_of(failure)
    if code.startswith(_GIVEN) or isinstance(failure, UnicodeError):
        return StoreUnavailable("The database did not take what it was given.", retry=False)
    for codes, stable, reason in _REASONS:
        if code.startswith(codes):
            return StoreUnavailable(reason, code=stable)
    if lost(failure):
        return StoreUnavailable("The database cannot be reached.")
    return StoreUnavailable(f"The database could not be read or written ({code or type(failure).__name__}).")
