"""Ids of ours: random, never counted, so that nobody can guess another's and two processes never make the same.

Here: drawing them. Not here: whether a request has one already (`server.head`).
"""

from __future__ import annotations

from secrets import token_bytes
from typing import Final

_DRAWN: Final = 8192
"""Bytes drawn at once. Asking the system costs as much as writing the row that bears the id, and lets another thread
take the interpreter."""


class Names:
    """Makes ids. One per process; what was drawn is used once."""

    def __init__(self) -> None:
        self._drawn = b""
        self._place = 0

    def draw(self, size: int) -> bytes:
        """`size` random bytes; at most a few dozen."""
        place = self._place
        if place + size > len(self._drawn):
            self._drawn = token_bytes(_DRAWN)
            place = 0
        self._place = place + size
        return self._drawn[place : place + size]

    def fresh(self, prefix: str) -> str:
        """A new id: `prefix` and 96 random bits in hex."""
        return prefix + self.draw(12).hex()
