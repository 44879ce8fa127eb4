"""When an upstream that fails is left alone, and when it is tried again. A state machine over times that are given.

    closed --too many failures--> open --`pause` seconds--> half open --a call succeeds--> closed
                                   ^-------- it fails --------'

Belongs here: counting how calls ended, and whether the next may be made. Never: what a failure is (its owner says), a
clock, or a call. Half open, one call at a time is let through; one that is never heard of again holds the place for
`pause` seconds. How calls end that began before it opened tells nothing about the upstream of now.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import msgspec

State = Literal["closed", "half_open", "open"]

_KEPT: Final = 60
"""Seconds that are remembered."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """It opens after `consecutive` failures in a row, or where at least `failures` of the calls that ended within
    `within` seconds failed and these are a `share` of them. Then nothing is sent for `pause` seconds."""

    consecutive: int = 10
    failures: int = 20
    share: float = 0.5
    within: float = 10.0
    pause: float = 15.0


class Recent:
    """How many calls ended in each of the last seconds, and how many of them failed. `calls` and `failures` are those
    of the second that ends at `until`: a call that ends well adds to a number, and that is all it costs."""

    __slots__ = ("_slots", "calls", "failures", "until")

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int, int]] = deque()
        self.calls = 0
        self.failures = 0
        self.until = 0.0

    def add(self, now: float, failed: bool) -> None:
        if now >= self.until:
            self.turn(now)
        self.calls += 1
        self.failures += failed

    def turn(self, now: float) -> None:
        """Another second has begun."""
        slots, second = self._slots, int(now)
        if self.calls:
            slots.append((int(self.until) - 1, self.calls, self.failures))
        while slots and second - slots[0][0] > _KEPT:
            slots.popleft()
        self.calls = self.failures = 0
        self.until = second + 1.0

    def within(self, now: float, seconds: float = _KEPT, since: float = 0.0) -> tuple[int, int]:
        """Calls and failures of the last `seconds`, and not before `since`; to the second."""
        if now >= self.until:
            self.turn(now)
        first = max(int(now) - seconds, int(since) - 1)
        found = [slot for slot in self._slots if slot[0] > first]
        return sum(slot[1] for slot in found) + self.calls, sum(slot[2] for slot in found) + self.failures


class Breaker:
    """One upstream's. How its calls end is counted in `recent`, by whoever has them."""

    __slots__ = ("_closed", "_opened", "_probing", "_recent", "_rules", "in_a_row", "state")

    def __init__(self, rules: Rules, recent: Recent) -> None:
        self._rules = rules
        self._recent = recent
        self._opened = self._closed = 0.0
        self._probing: float | None = None
        self.in_a_row = 0
        """Failures since the last success."""
        self.state: State = "closed"

    def wait(self, now: float) -> float:
        """0 where a call may be made, and is counted on then; else the seconds until one may."""
        if self.state == "closed":
            return 0.0
        pause = self._rules.pause
        if self.state == "open":
            left = self._opened + pause - now
            if left > 0:
                return left
            self.state, self._probing = "half_open", None
        if self._probing is not None and now < self._probing + pause:
            return max(1.0, self._probing + pause - now)
        self._probing = now
        return 0.0

    def heard(self, began: float, now: float) -> None:
        """A call that began at `began` is being answered."""
        if self.state != "closed" and began >= self._opened:
            self.state, self.in_a_row, self._probing, self._closed = "closed", 0, None, now

    def succeeded(self, began: float, now: float) -> None:
        """A call ended well, or in a way that is none of the upstream's doing."""
        if self.state == "closed":
            self.in_a_row = 0
        else:
            self.heard(began, now)

    def failed(self, began: float, now: float) -> None:
        rules = self._rules
        if self.state != "closed":
            if began >= self._opened:
                self._open(now)
            return
        self.in_a_row += 1
        calls, failures = self._recent.within(now, rules.within, self._closed)
        if self.in_a_row >= rules.consecutive or (failures >= rules.failures and failures >= rules.share * calls):
            self._open(now)

    def abandoned(self, began: float) -> None:
        """Nobody waited for the end of a call: it tells nothing, and another may be made in its place."""
        if self._probing is not None and began >= self._probing:
            self._probing = None

    def _open(self, now: float) -> None:
        self.state, self._opened, self._probing = "open", now, None
