"""The paths of conversations that were told last, so that a call does not read a long one again.

Belongs here: which are kept, within a budget of bytes. An item never changes and goes with its conversation only, so
what led to one leads to it for ever; where a head is now is asked of the database each time. Never: a statement.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from proxy.store.owned import Item
from proxy.store.owned_work import At

_BUDGET: Final = 32 * 1024 * 1024
_ITEM: Final = 700
"""Bytes that an item takes beside its wire."""


class _Path(NamedTuple):
    items: tuple[Item, ...]
    size: int


class Paths:
    """The latest used, last; at most `budget` bytes of them."""

    def __init__(self, budget: int = _BUDGET) -> None:
        self._budget = budget
        self._left = budget
        self._paths: OrderedDict[At, _Path] = OrderedDict()

    def of(self, at: At) -> tuple[Item, ...]:
        """The path that was told last; () where none is kept."""
        known = self._paths.get(at)
        if known is None:
            return ()
        self._paths.move_to_end(at)
        return known.items

    def keep(self, at: At, items: tuple[Item, ...]) -> None:
        """`items` is its path now."""
        before = self._paths.pop(at, None)
        self._left += before.size if before is not None else 0
        if not items:
            return
        told = 0
        if before is not None and len(before.items) <= len(items) and items[len(before.items) - 1] is before.items[-1]:
            told = len(before.items)
        size = sum([len(item.wire) + _ITEM for item in items[told:]], before.size if before is not None and told else 0)
        if size > self._budget:
            return
        self._paths[at] = _Path(items, size)
        self._left -= size
        while self._left < 0:
            self._left += self._paths.popitem(last=False)[1].size

    def forget(self, at: At) -> None:
        """The conversation was deleted."""
        self.keep(at, ())
