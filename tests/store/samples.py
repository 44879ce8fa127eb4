"""Values for the tests of the store, and a connection that lets a test step in before a statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from proxy.core.notes import Compaction, Notes, Pin
from proxy.core.steps import Anchor, Hidden, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store.sqlite_file import connect

NOW = 1_800_000_000.0
SCOPE = b"\x01" * 32


def at(*names: str) -> tuple[bytes, ...]:
    """Digests of prefixes, as the chain would give them: newest first."""
    return tuple(name.encode().ljust(32, b"\0") for name in names)


def digest(name: str) -> bytes:
    return at(name)[0]


def ask(*names: str, scope: bytes = SCOPE, label: str | None = None, named: bool = False, agent: str = "a") -> Recall:
    return Recall(scope=scope, agent=agent, label=label, named=named, digests=at(*names))


def anchor(reported: int = 1000, model: str = "m") -> Anchor:
    return Anchor(upstream="main", model=model, shape=b"\xff\x00", reported=reported, estimated=reported - 10)


def compaction(name: str, messages: int, id: str = "cmp_1", text: str = "please") -> Compaction:
    notes = Notes(turns=messages // 2, pins=(Pin(turn=1, text=text),))
    return Compaction(id=id, digest=digest(name), messages=messages, covers=messages, notes=notes)


def taught(**more: Any) -> Remember:
    """A Remember of one call; `reply` and `request` by name."""
    for place in ("reply", "request"):
        if isinstance(more.get(place), str):
            more[place] = digest(more[place])
    return Remember(**({"scope": SCOPE, "agent": "a", "conversation": "conv_1"} | more))


def hidden(name: str, payload: bytes, label: str | None = None) -> Hidden:
    return Hidden(digest=digest(name), label=label, payload=payload)


def row(id: str = "row_1", **more: Any) -> UsageRow:
    fields = {
        "id": id,
        "request": "req_1",
        "tenant": "t",
        "key": "k",
        "upstream": "main",
        "asked_model": "fast",
        "model": "m",
        "opened_at": NOW,
    }
    return UsageRow(**(fields | more))


class Watched(sqlite3.Connection):
    """Calls `before(connection, sql)` ahead of each statement. The store's thread calls it."""

    before: Callable[[Watched, str], None] | None = None

    def plainly(self, sql: str) -> sqlite3.Cursor:
        return super().execute(sql)

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if self.before is not None:
            self.before(self, sql)
        return super().execute(sql, *rest)

    def executemany(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if self.before is not None:
            self.before(self, sql)
        return super().executemany(sql, *rest)


class Watch:
    """A `connect` whose connection does what the test says, from the moment it is armed."""

    def __init__(self) -> None:
        self.before: Callable[[Watched, str], None] | None = None

    def __call__(self, path: str) -> sqlite3.Connection:
        plain = connect(path)
        plain.close()
        opened = sqlite3.connect(path, timeout=0.1, isolation_level=None, factory=Watched)
        opened.before = self._ahead
        return opened

    def _ahead(self, connection: Watched, sql: str) -> None:
        if self.before is not None:
            self.before(connection, sql)
