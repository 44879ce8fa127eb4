"""Ids of ours: random, never counted, so that nobody can guess another's and two processes never make the same. They
begin with their time, like a UUIDv7 (RFC 9562, 5.7): rows made one after the other lie side by side in an index, so
that a commit writes a few pages where it would write one for each row.

Here: drawing them. Not here: whether a request has one already (`server.head`).
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_bytes
from time import time
from typing import Final

_DRAWN: Final = 8192
"""Bytes drawn at once. Asking the system costs as much as writing the row that bears the id, and lets another thread
take the interpreter."""


class Names:
    """Makes ids. One per process; what was drawn is used once. `wall` tells unix seconds."""

    def __init__(self, wall: Callable[[], float] = time) -> None:
        self._wall = wall
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
        """A new id: `prefix`, the time in milliseconds (48 bits) and 80 random bits, in hex."""
        moment = int(self._wall() * 1000).to_bytes(6, "big")
        return prefix + (moment + self.draw(10)).hex()
