"""When the boundaries of a memory move: at every turn, every few turns, or when it pays.

A provider sells what it has cached for less, and what stands behind a change is read as new (research/compaction.md,
F97, F98 and decision 4). So where there is such a price, a move has one too, and the boundaries wait until what they
cut is worth it. The account is kept from turn to turn: what was saved so far may be spent, and half of what the next
turn is expected to save; then memory costs no more than none (benchmarks/memory.md). It is a function of the history
alone, so equal histories are told in equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from proxy.core.agent import MemoryLimits
from proxy.core.policy import Tariff

SLACK: Final = 40
"""Turns after which the boundaries move whatever it costs."""
_AHEAD: Final = 2.0
"""Turns within which a move has to pay."""
_TRUST: Final = 0.5
"""Of what the next turn is expected to save this part may be spent before it is saved."""
_NOTES: Final = 150
"""Estimated tokens of notes besides the requests in them."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The boundaries, as numbers of closed turns: those before `first` have slid out, those before `results` are told
    without results, those before `trimmed` as memory, the others still word for word."""

    first: int = 0
    results: int = 0
    trimmed: int = 0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """`step` turns between two moves; None: when it pays, with what a token read from and written to the provider's
    cache costs, measured by one that is only read."""

    step: int | None = 1
    read: float = 1.0
    write: float = 1.0


class Weight(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Estimated tokens of a closed turn: word for word, as memory with its results, without them, and of what the user
    said in it; and how often the model was asked."""

    whole: int
    recent: int
    older: int
    asked: int
    calls: int


def pace_of(limits: MemoryLimits, tariff: Tariff | None) -> Pace:
    """The pace that `limits` state, else the cheapest with this tariff."""
    if limits.step is not None:
        return Pace(step=limits.step)
    if tariff is None or tariff.cached is None or not 0 <= tariff.cached < tariff.input:
        return Pace()
    written = tariff.input if tariff.cache_write is None else tariff.cache_write
    return Pace(step=None, read=tariff.cached / tariff.input, write=written / tariff.input)


def stepped(closed: int, limits: MemoryLimits, step: int) -> Window:
    """The boundaries behind `closed` turns that move every `step`: all together, and when some slide out."""
    moved = max(0, closed - (closed - limits.turns) % step)
    return Window(first=max(0, moved - limits.turns), results=max(0, moved - limits.result_turns), trimmed=moved)


def loosest(closed: int, limits: MemoryLimits, pace: Pace) -> Window:
    """The boundaries where the most is told that `pace` allows, wherever notes may end."""
    if pace.step is None:
        return Window()
    moved = max(0, closed - pace.step + 1)
    return Window(results=max(0, moved - limits.result_turns), trimmed=moved)


def paced(weights: Sequence[Weight], limits: MemoryLimits, pace: Pace) -> Window:
    """The boundaries behind the closed turns of `weights`, moved whenever that paid."""
    account = _Account(weights, limits, pace)
    for closed in range(1, len(weights) + 1):
        account.turn(closed)
    return account.window


class _Account:
    """What was spent and saved, in the price of a token that is read for the first time."""

    def __init__(self, weights: Sequence[Weight], limits: MemoryLimits, pace: Pace) -> None:
        self._weights = weights
        self._limits = limits
        self._pace = pace
        self._saved = 0.0
        self._whole = 0
        self._told = 0
        """Tokens of all closed turns, word for word, and as they are told."""
        self._calls = 0
        self._sums = tuple(
            (0, *accumulate(sizes))
            for sizes in (
                [weight.older for weight in weights],
                [weight.recent for weight in weights],
                [weight.whole for weight in weights],
            )
        )
        self._asked = (0, *accumulate([weight.asked for weight in weights]))
        self.window = Window()

    def turn(self, closed: int) -> None:
        """Another turn is closed, and the next one open: `closed` are closed."""
        last = self._weights[closed - 1]
        self._whole += last.whole
        self._told += last.whole
        self._calls += last.calls
        self._saved += self._pace.read * (self._whole - self._told)
        bounds = self.window
        results = max(0, closed - self._limits.result_turns)
        first = max(0, closed - self._limits.turns)
        if first > bounds.first:
            far = Window(first=first, results=results, trimmed=closed)
            now = self._notes(first) + self._size(far, first, closed)
            self._move(far, self._told, now, closed, forced=first - bounds.first >= SLACK)
        bounds = self.window
        if bounds.trimmed < closed:
            near = Window(first=bounds.first, results=results, trimmed=closed)
            start = bounds.results if results > bounds.results else bounds.trimmed
            before, now = self._size(bounds, start, closed), self._size(near, start, closed)
            self._move(near, before, now, closed, forced=closed - bounds.trimmed >= SLACK)
        if closed < len(self._weights):
            again = self._weights[closed].calls - 1
            self._saved += max(0, again) * self._pace.read * (self._whole - self._told)

    def _move(self, to: Window, before: int, now: int, closed: int, *, forced: bool) -> None:
        """Move, if it pays, where `before` tokens behind the change would become `now`."""
        price = self._pace.write * now - self._pace.read * before
        soon = self._calls / closed * self._pace.read * (before - now)
        if forced or price <= min(_AHEAD * soon, self._saved + _TRUST * soon):
            self.window = to
            self._saved -= price
            self._told += now - before

    def _size(self, bounds: Window, start: int, stop: int) -> int:
        """Tokens of the turns from `start` to `stop`, told within `bounds`."""
        start = max(start, bounds.first)
        edges = (start, max(start, bounds.results), max(start, bounds.trimmed), stop)
        parts = zip(self._sums, edges, edges[1:], strict=False)
        return sum([sums[behind] - sums[before] for sums, before, behind in parts])

    def _notes(self, first: int) -> int:
        """What stands for the turns before `first`, once it stands for them."""
        return _NOTES + self._asked[first]
