"""What was read out of messages for the ledger, kept by their identity: a history grows at its end, and planning a
compaction should cost what is new in it. The kinds of the blocks belong to the key: reasoning and empty texts are not
in the identity, but sightings say in which block they were made.

Bounded in sightings, least recently used first out. Used by the one thread that plans.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.core.conversation import Message
from proxy.core.ledger import sightings
from proxy.core.notes import Sightings

_ENTRY = 4
"""Sightings that an entry weighs beside its own."""


class Sighted:
    """`scan` is `ledger.sightings` with memory. `budget` bounds the sightings held; texts pass `redact` first."""

    def __init__(self, budget: int = 400_000, redact: Callable[[str], str] = str) -> None:
        self._budget = budget
        self._redact = redact
        self._entries: dict[tuple[bytes, tuple[type, ...]], Sightings] = {}
        self.held = 0

    def scan(self, message: Message) -> Sightings:
        key = (message.digest, tuple(map(type, message.blocks)))
        found = self._entries.pop(key, None)
        if found is None:
            found = sightings(message, self._redact)
            self.held += len(found) + _ENTRY
        self._entries[key] = found
        while self.held > self._budget and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            self.held -= len(self._entries.pop(oldest)) + _ENTRY
        return found
