"""Notes as they are told, kept by the id of their compaction: it is derived from their content, and a branch that was
compacted tells the same notes with every call.

Bounded in bytes, least recently used first out. Shared by the loop and the thread that plans.
"""

from __future__ import annotations

import threading

import msgspec

from proxy.core.compaction import notes_message
from proxy.core.conversation import Message
from proxy.core.notes import Compaction
from proxy.dialects.chat.messages import write_message


class Noted:
    """`write` is `compaction.notes_message` with memory, in the form that goes upstream. `budget` bounds the bytes."""

    def __init__(self, budget: int = 32 << 20) -> None:
        self._budget = budget
        self._entries: dict[str, Message] = {}
        self._lock = threading.Lock()
        self.held = 0

    def write(self, compaction: Compaction) -> Message:
        with self._lock:
            found = self._entries.pop(compaction.id, None)
            if found is not None:
                self._entries[compaction.id] = found
                return found
        made = notes_message(compaction)
        found = msgspec.structs.replace(made, wire=write_message(made))
        with self._lock:
            if compaction.id not in self._entries:
                self.held += _weight(found)
            self._entries[compaction.id] = found
            while self.held > self._budget and len(self._entries) > 1:
                self.held -= _weight(self._entries.pop(next(iter(self._entries))))
        return found


def _weight(item: Message) -> int:
    """The text, and the same as JSON."""
    return 2 * len(item.wire or b"")
