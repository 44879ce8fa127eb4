"""What this process knows of the database without asking it.

What belongs here: a bounded copy of what is stored at shown prefixes, and the certainty that some were never stored.
What never: I/O or a clock. It may be believed because one process owns the file: each write is announced (`expect`) in
the moment it is queued, which makes its prefixes unknown, and what it left is entered (`settle`) when it is durable. So
a recall that is answered here equals one that is answered by the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.store.rows import Known

ENTRIES = 100_000
"""Prefixes kept. Half of them may be old: see `Recent`."""

BYTES = 32 * 1024 * 1024
"""Stored bytes of the compactions kept."""

GUESSES = 16
"""More unknown prefixes than this are a history that we have not seen, and are asked for together."""


class _Unseen(msgspec.Struct, frozen=True):
    pass


_UNSEEN = _Unseen()
"""Not the same as None, which says: known, and nothing is stored there."""

Owner = tuple[str, bytes]
"""Tenant and scope."""

_NONE: Final[Mapping[bytes, Known | None]] = MappingProxyType({})


class Absent:
    """Says of a digest that it was never stored; never wrongly, and it cannot name those that were.

    A Bloom filter: three bits a digest. `load` belongs to the thread that reads the file, `add` to the loop; each has
    its own bits, because setting a bit is not atomic.
    """

    def __init__(self, bits: int = 1 << 24) -> None:
        self._mask = bits - 1
        self._loaded = bytearray(bits >> 3)
        self._added = bytearray(bits >> 3)
        self.complete = False
        """Whether all that the file holds has been loaded. Before that nothing is certain."""

    def _places(self, digest: bytes) -> tuple[int, int, int]:
        mixed = hash(digest)
        step = mixed >> 32 | 1
        return mixed & self._mask, mixed + step & self._mask, mixed + 2 * step & self._mask

    def load(self, digests: Iterable[bytes]) -> None:
        bits = self._loaded
        for digest in digests:
            for place in self._places(digest):
                bits[place >> 3] |= 1 << (place & 7)

    def add(self, digest: bytes) -> None:
        for place in self._places(digest):
            self._added[place >> 3] |= 1 << (place & 7)

    def certain(self, digest: bytes) -> bool:
        if not self.complete:
            return False
        loaded, added = self._loaded, self._added
        return any(not (loaded[place >> 3] | added[place >> 3]) & 1 << (place & 7) for place in self._places(digest))


class _Generation:
    def __init__(self) -> None:
        self.prefixes: dict[Owner, dict[bytes, Known | None]] = {}
        self.labels: dict[tuple[Owner, str], str] = {}
        self.entries = 0
        self.size = 0


class Recent:
    """Two generations: what is used moves to the young one; when that is full it becomes the old one, and what was old
    and unused goes. Costs no list of who was used last."""

    def __init__(self, absent: Absent, entries: int = ENTRIES, size: int = BYTES) -> None:
        self._absent = absent
        self._entries = entries // 2
        self._size = size // 2
        self._young = _Generation()
        self._old = _Generation()
        self._expected: dict[tuple[Owner, bytes], int] = {}
        self.era = 0
        """Counts `forget`: what was read in an earlier era is not kept."""

    def lookup(self, owner: Owner, digests: Sequence[bytes]) -> tuple[list[tuple[bytes, Known]], list[bytes]]:
        """(what is stored, in the order of `digests`; those the database must be asked about)."""
        get = self._young.prefixes.get(owner, _NONE).get
        stored: list[tuple[bytes, Known]] = []
        unseen: list[bytes] = []
        for digest in digests:
            known = get(digest, _UNSEEN)
            if known is None:
                continue
            # By identity: `isinstance` costs five times as much here, and every boundary of a history comes by.
            if type(known) is not Known:
                known = self._older(owner, digest)
            if type(known) is Known:
                stored.append((digest, known))
            elif known is not None:
                unseen.append(digest)
        if unseen and len(unseen) <= GUESSES:
            unseen = [digest for digest in unseen if not self._never(owner, digest)]
        return stored, unseen

    def certain(self, owner: Owner, digests: Iterable[bytes]) -> dict[bytes, Known | None] | None:
        """What is stored at each of `digests` (None: nothing); None where not all of it is known here."""
        found: dict[bytes, Known | None] = {}
        get = self._young.prefixes.get(owner, _NONE).get
        for digest in digests:
            known = get(digest, _UNSEEN)
            if known is None or type(known) is Known:
                found[digest] = known
                continue
            known = self._older(owner, digest)
            if isinstance(known, _Unseen):
                if (owner, digest) in self._expected or not self._absent.certain(digest):
                    return None
                known = None
            found[digest] = known
        return found

    def _older(self, owner: Owner, digest: bytes) -> Known | _Unseen | None:
        known = self._old.prefixes.get(owner, {}).get(digest, _UNSEEN)
        if not isinstance(known, _Unseen):
            self._enter(owner, digest, known)
        return known

    def _never(self, owner: Owner, digest: bytes) -> bool:
        if not self._absent.certain(digest):
            return False
        self._enter(owner, digest, None)
        return True

    def _enter(self, owner: Owner, digest: bytes, known: Known | None) -> None:
        young = self._young
        young.prefixes.setdefault(owner, {})[digest] = known
        young.entries += 1
        if known is not None:
            young.size += known.size
        self._turn()

    def _turn(self) -> None:
        if self._young.entries >= self._entries or self._young.size >= self._size:
            self._old, self._young = self._young, _Generation()

    def keep(self, owner: Owner, digests: Iterable[bytes], found: Mapping[bytes, Known], era: int) -> None:
        """Enter what the database answered, but for what a write has touched since it was asked."""
        if era != self.era:
            return
        young, old = self._young.prefixes.get(owner, {}), self._old.prefixes.get(owner, {})
        for digest in digests:
            if digest not in young and digest not in old and (owner, digest) not in self._expected:
                self._enter(owner, digest, found.get(digest))

    def label(self, owner: Owner, label: str) -> str | None:
        """The label's conversation, where it is known here."""
        found = self._young.labels.get((owner, label))
        if found is None and (found := self._old.labels.get((owner, label))) is not None:
            self.keep_label(owner, label, found, self.era)
        return found

    def keep_label(self, owner: Owner, label: str, conversation: str, era: int) -> None:
        if era == self.era:
            self._young.labels[owner, label] = conversation
            self._young.entries += 1
            self._turn()

    def expect(self, owner: Owner, digests: Iterable[bytes]) -> None:
        """A write at `digests` is about to be queued."""
        for digest in digests:
            self._absent.add(digest)
            self._expected[owner, digest] = self._expected.get((owner, digest), 0) + 1
            for generation in (self._young, self._old):
                generation.prefixes.get(owner, {}).pop(digest, None)

    def settle(self, owner: Owner, digests: Iterable[bytes], found: Mapping[bytes, Known] | None, era: int) -> None:
        """The write is over; `found` is what it left at `digests`, None where it failed."""
        for digest in digests:
            waiting = self._expected.pop((owner, digest)) - 1
            if waiting:
                self._expected[owner, digest] = waiting
            elif found is not None and era == self.era:
                self._enter(owner, digest, found.get(digest))

    def forget(self) -> None:
        self.era += 1
        self._young, self._old = _Generation(), _Generation()
