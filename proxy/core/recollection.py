"""What is kept of memory between two calls: how closed turns were told, for they do not change any more.

A bounded container and its values. Never: making them (`turned`); what they are found by, whoever keeps them decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec

from proxy.core.conversation import Message

_MOST: Final = 8_000_000
"""Estimated tokens of turns that are kept, some four bytes each."""
_ENTRY: Final = 500
"""What an entry takes besides."""


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as it is told: what stands at the place of each message that is not told as it was; its estimated size in
    tokens; and where results were cut: the reference of the whole, the index of the message at whose place it is told,
    and which of those that are told there."""

    places: Mapping[int, tuple[Message, ...]]
    tokens: int = 0
    wholes: tuple[tuple[str, int, int], ...] = ()


class Recollection:
    """Turns as they were told lately, and whole memories: what is closed does not change, and is told at every call.
    Who puts a value in knows its kind, and keeps the kinds apart by their keys."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._size = 0
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        return self._known.get(key)

    def put(self, key: Hashable, value: object, tokens: int) -> None:
        """Keep `value`, of `tokens` estimated tokens."""
        weight = tokens + _ENTRY
        if self._size + weight > self._most:
            # All at once: an explanation is made in the worker, while the loop reads.
            self._known, self._size = {}, 0
        self._known[key] = value
        self._size += weight
