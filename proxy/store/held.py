"""What people and models said, kept in memory only: compactions, hidden state, cut results (`store.content: strict`).

What belongs here: keeping, finding and forgetting them, by caller. What never: I/O or a clock. Bounded in bytes: the
longest unused goes first. A row lives as long as its conversation is used, as in the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from proxy.core.notes import Compaction
from proxy.core.steps import Recall, Remember
from proxy.store.rows import HiddenRow, encode, hidden_id

BYTES: Final = 64 * 1024 * 1024

Owner = tuple[str, bytes]
Place = tuple[str, Owner, bytes | str, str]
"""What it is, whose, the digest or reference it is found by, and the agent of hidden state."""


class _Row(msgspec.Struct, kw_only=True):
    conversation: str
    used: float
    size: int
    what: Compaction | HiddenRow | str


class _Talk(msgspec.Struct, kw_only=True):
    """A conversation of which `rows` are held, and when it was last used."""

    used: float
    rows: int = 0


class Held:
    """Rows by place and id, the longest unused first."""

    def __init__(self, size: int = BYTES) -> None:
        self._most = size
        self._size = 0
        self._places: OrderedDict[Place, dict[str | bytes, _Row]] = OrderedDict()
        self._talks: dict[tuple[Owner, str], _Talk] = {}

    def remember(self, tenant: str, what: Remember, now: float) -> None:
        owner = (tenant, what.scope)
        for place, id, said in _content(owner, what):
            rows = self._places.setdefault(place, {})
            self._places.move_to_end(place)
            if id in rows:
                rows[id].used = max(rows[id].used, now)
                continue
            size = len(said) if isinstance(said, str) else len(encode(said))
            rows[id] = _Row(conversation=what.conversation, used=now, size=size, what=said)
            self._size += size
            self._talks.setdefault((owner, what.conversation), _Talk(used=now)).rows += 1
        self.use(owner, what.conversation, now)
        while self._size > self._most:
            place, rows = self._places.popitem(last=False)
            for row in rows.values():
                self._gone(place[1], row)

    def use(self, owner: Owner, conversation: str | None, now: float) -> None:
        """A conversation was used: what belongs to it lives on."""
        talk = self._talks.get((owner, conversation)) if conversation is not None else None
        if talk is not None:
            talk.used = now

    def compactions(self, owner: Owner, path: Sequence[bytes], most: int) -> tuple[Compaction, ...]:
        """Those that reach furthest along `path` (newest first), at most `most`; shortest first."""
        found: list[Compaction] = []
        for digest in path:
            for row in self._at(("compaction", owner, digest, "")):
                assert isinstance(row.what, Compaction)
                found.append(row.what)
            if len(found) >= most:
                break
        return tuple(sorted(found[:most], key=lambda each: (each.messages, each.id)))

    def hidden(self, owner: Owner, ask: Recall) -> tuple[HiddenRow, ...]:
        """That of this agent on the path, oldest first."""
        found: list[HiddenRow] = []
        for digest in reversed(ask.digests):
            rows = (row.what for row in self._at(("hidden", owner, digest, ask.agent)))
            found += sorted((row for row in rows if isinstance(row, HiddenRow)), key=lambda row: row.id)
        return tuple(found)

    def result(self, owner: Owner, reference: str) -> str | None:
        for row in self._at(("result", owner, reference, "")):
            return row.what if isinstance(row.what, str) else None
        return None

    def purge(self, tenant: str, before: float) -> int:
        """Forget what was last used before `before`, and say how many rows that were."""
        gone = 0
        for place, rows in tuple(self._places.items()):
            owner = place[1]
            if owner[0] != tenant:
                continue
            for id, row in tuple(rows.items()):
                if max(row.used, self._talks[owner, row.conversation].used) < before:
                    self._gone(owner, rows.pop(id))
                    gone += 1
            if not rows:
                del self._places[place]
        return gone

    def _gone(self, owner: Owner, row: _Row) -> None:
        self._size -= row.size
        talk = self._talks[owner, row.conversation]
        talk.rows -= 1
        if not talk.rows:
            del self._talks[owner, row.conversation]

    def _at(self, place: Place) -> tuple[_Row, ...]:
        rows = self._places.get(place)
        if rows is None:
            return ()
        self._places.move_to_end(place)
        return tuple(rows.values())


def _content(owner: Owner, what: Remember) -> Iterator[tuple[Place, str | bytes, Compaction | HiddenRow | str]]:
    if (notes := what.compaction) is not None:
        yield ("compaction", owner, notes.digest, ""), notes.id, notes
    if (hidden := what.hidden) is not None:
        id = hidden_id(hidden, what.reply)
        row = HiddenRow(digest=hidden.digest, id=id, reply=what.reply, label=hidden.label, payload=hidden.payload)
        yield ("hidden", owner, hidden.digest, what.agent), id, row
    for stored in what.results:
        yield ("result", owner, stored.reference, ""), "", stored.text
