"""Ids of ours: random, never counted, so that nobody can guess another's and two processes never make the same.

Here: making them. Not here: request ids, which a client may choose (`server.head`).
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final

_DIGITS: Final = 24
"""Hex digits of an id: 96 random bits."""
_DRAWN: Final = 256
"""Ids drawn at once: asking the system for each costs as much as writing the row that bears it."""


class Names:
    """Makes ids. One per process; what was drawn is used once."""

    def __init__(self) -> None:
        self._drawn = ""

    def fresh(self, prefix: str) -> str:
        """A new id that begins with `prefix`."""
        place = len(self._drawn) - _DIGITS
        if place < 0:
            self._drawn = token_hex(_DIGITS * _DRAWN // 2)
            place = len(self._drawn) - _DIGITS
        digits, self._drawn = self._drawn[place:], self._drawn[:place]
        return prefix + digits
