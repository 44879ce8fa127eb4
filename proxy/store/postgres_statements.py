"""The SQL of the PostgreSQL fulfilment as text, ready for the driver.

What belongs here: as in `statements`, whose structs it goes on with; it is read from `postgres.json`. `changes` are the
migrations, each as one script, so that neither a start nor an update imports what wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from proxy.store.statements import USAGE_COLUMNS, Reports, Shared

FILE = Path(__file__).parent / "postgres.json"
"""Written by `scripts/statements.py`; nobody edits it."""

COPIED = (*USAGE_COLUMNS, "instance")
"""The columns of a usage row as COPY writes it."""

NEAR = 64
"""The newest boundaries of a history, among which a conversation that goes on is found."""

DEAD = 15
"""Seconds without a sign of life after which a process counts as dead."""


class PostgresStatements(Shared, frozen=True, kw_only=True):
    """What is said otherwise than on SQLite; the order of parameters stands at each maker in `composing_postgres`.

    `add` also marks a row that is there as used.
    """

    recall: str
    farther: str
    payloads: str
    open_row: str
    close_row: str
    beat: str
    leave: str
    reap: str
    forget_dead: str
    revision: str
    revise: str


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """`postgres.json`. `changes` lead from an empty database to `head`, in their order."""

    head: str
    changes: Mapping[str, str]
    statements: PostgresStatements
    reports: Reports


def compiled() -> Compiled:
    """Everything, as it was compiled. Half a millisecond, once per store."""
    return msgspec.json.decode(FILE.read_bytes(), type=Compiled)
