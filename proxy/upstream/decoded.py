"""Messages that were decoded before: wire bytes to decoded message, with its identity and its size.

An agent sends its whole history again with every call; all but the last messages are here already. Bounded in bytes,
least recently used first out. Keys are per tenant, so that one tenant's history does not speed up another's call, and
a seeded xxhash of bytes that are kept for comparison: a collision costs a decode, never a wrong message.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import xxhash

from proxy.core.conversation import Message

_ENTRY = 400
"""Bytes that an entry costs beside its message's bytes, about."""


class Decoded:
    """`budget` bounds the wire bytes held. Not shared between threads."""

    def __init__(self, budget: int = 64 << 20) -> None:
        self._budget = budget
        self._held = 0
        self._seed = secrets.randbits(63)
        self._entries: dict[tuple[str, int], Message] = {}

    @property
    def held(self) -> int:
        """Bytes held now, about."""
        return self._held

    def reader(self, tenant: str, decode: Callable[[bytes, int], Message]) -> Callable[[bytes, int], Message]:
        """`decode` with memory, for the messages of one tenant."""

        def read(wire: bytes, index: int) -> Message:
            key = (tenant, xxhash.xxh3_64_intdigest(wire, self._seed))
            found = self._entries.pop(key, None)
            if found is not None and found.wire == wire:
                self._entries[key] = found
                return found
            if found is not None:
                self._held -= _weight(found)
            made = decode(wire, index)
            self._keep(key, made)
            return made

        return read

    def _keep(self, key: tuple[str, int], made: Message) -> None:
        weight = _weight(made)
        if weight * 4 > self._budget:
            return
        self._entries[key] = made
        self._held += weight
        while self._held > self._budget:
            oldest = next(iter(self._entries))
            self._held -= _weight(self._entries.pop(oldest))


def _weight(item: Message) -> int:
    # Blocks hold the text a second time, decoded.
    return 2 * len(item.wire or b"") + _ENTRY
