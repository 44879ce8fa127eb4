"""What a key may use, and what it has used: limits, the minute's window, the day's account, reservations.

Belongs here: the arithmetic, with the time given. Never: where limits are stated or kept, what a store knows, or whose
request it is. A request takes its place first (`enter`), holds what it may use as soon as that can be told (`reserve`),
and gives back what it held as its rows are closed (`used`) and at its end (`leave`): so that a burst of calls whose
cost is not known yet cannot run far over a limit. Minutes are counted on a clock that never steps, days are UTC.
Retrying a call that was refused for the day's sake does not help, and clients are told so.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from proxy.core.errors import Busy, QuotaSpent

DAY: Final = 86_400
_MINUTE: Final = 60
_SOON: Final = 1.0
"""Seconds after which a request is told to try again, where only what others hold is in its way."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one key; None: nobody said. Tokens are input and output together, cost is nano-dollars, `expires` unix
    seconds. `streams` are requests served at once. A key that is `stopped` opens nothing."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: int | None = None
    streams: int | None = None
    expires: float | None = None
    stopped: bool | None = None

    def over(self, lower: Quota) -> Quota:
        """This one, and where it says nothing what `lower` says."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(lower, **said)

    @property
    def metered(self) -> bool:
        """Whether any of it is counted while requests come."""
        return msgspec.structs.replace(self, expires=None, stopped=None) != _OPEN

    @property
    def daily(self) -> bool:
        """Whether what was used today must be known."""
        return any(limit is not None for limit in (self.requests_per_day, self.tokens_per_day, self.cost_per_day))

    def closed(self, now: float) -> bool:
        """Whether the key opens nothing at `now` (unix seconds)."""
        return bool(self.stopped) or (self.expires is not None and now >= self.expires)


_OPEN: Final = Quota()


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A time: `clock` never steps, `wall` is unix seconds."""

    clock: float
    wall: float

    @property
    def today(self) -> int:
        """Whole days since 1970-01-01 UTC."""
        return int(self.wall // DAY)

    @property
    def midnight(self) -> float:
        """Seconds until the next day begins."""
        return DAY - self.wall % DAY


class Amount(msgspec.Struct, frozen=True):
    """What was used, or is held."""

    requests: int = 0
    tokens: int = 0
    cost: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.requests + other.requests, self.tokens + other.tokens, self.cost + other.cost)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.requests - other.requests, self.tokens - other.tokens, self.cost - other.cost)

    def least(self, other: Amount) -> Amount:
        """The smaller of each."""
        return Amount(min(self.requests, other.requests), min(self.tokens, other.tokens), min(self.cost, other.cost))


_NOTHING: Final = Amount()


class Window:
    """What was used within the last minute, in slots of a second; each is counted until all of it is a minute old, so
    that no sixty seconds ever hold more than was allowed."""

    __slots__ = ("_slots", "_total")

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, now: float, amount: int) -> None:
        second = int(now)
        if self._slots and self._slots[-1][0] >= second:
            last, before = self._slots.pop()
            self._slots.append((last, before + amount))
        else:
            self._slots.append((second, amount))
        self._total += amount

    def used(self, now: float) -> int:
        slots, second = self._slots, int(now)
        while slots and second - slots[0][0] > _MINUTE:
            self._total -= slots.popleft()[1]
        return self._total

    def frees(self, now: float, amount: int) -> float:
        """Seconds until `amount` of what is in it has left, or all of it."""
        left, last = amount, int(now) - _MINUTE - 1
        for second, used in self._slots:
            if left <= 0:
                break
            left, last = left - used, second
        return max(0.0, last + _MINUTE + 1 - now)


class Held:
    """What one request holds of its key's limits."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = _NOTHING


class Meter:
    """The account of one key in one process.

    The day's account is what the store summed up (`told`), and what was closed here that this sum cannot hold yet.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.running = 0
        self.asked = False
        """Whether the store has said what was used today."""
        self._requests = Window()
        self._tokens = Window()
        self._held = _NOTHING
        self._day = -1
        self._known = self._since = self._durable = _NOTHING

    # -- a request ---------------------------------------------------------------------------------------------------

    def enter(self, at: Moment) -> Held:
        """Take a place. Raises Busy; QuotaSpent where nothing is left for anybody."""
        self.turn(at.today)
        most = self.quota.streams
        if most is not None and self.running >= most:
            raise Busy(f"This key may have {most} requests served at once, and has.", retry_after=_SOON)
        self._check(Amount(1, 1, 1), at)
        held = Held()
        self._requests.add(at.clock, 1)
        self._hold(held, Amount(1, 0, 0))
        self.running += 1
        return held

    def reserve(self, held: Held, tokens: int, cost: int, at: Moment) -> None:
        """Hold what the request is expected to use. Raises Busy, QuotaSpent."""
        self.turn(at.today)
        self._check(Amount(0, tokens, cost), at)
        self._hold(held, Amount(0, tokens, cost))

    def used(self, held: Held | None, amount: Amount, at: Moment) -> None:
        """A row of the request was closed: what it used is no longer held."""
        self.turn(at.today)
        if held is not None:
            self._hold(held, _NOTHING - held.amount.least(amount))
        self._tokens.add(at.clock, amount.tokens)
        self._since += amount

    def leave(self, held: Held) -> None:
        """The request is over."""
        self.running -= 1
        self._hold(held, _NOTHING - held.amount)

    def _hold(self, held: Held, more: Amount) -> None:
        held.amount += more
        self._held += more

    # -- the day -----------------------------------------------------------------------------------------------------

    def turn(self, today: int) -> None:
        """A new day begins with nothing used."""
        if today != self._day:
            self._day, self.asked = today, False
            self._known = self._since = self._durable = _NOTHING

    def durable(self, amount: Amount, today: int) -> None:
        """Rows that `used` counted are in the store."""
        if today == self._day:
            self._durable += amount

    def mark(self) -> Amount:
        """What a sum that is asked for now will hold of what was counted here."""
        return self._durable

    def told(self, total: Amount, mark: Amount, today: int) -> None:
        """The store's sum of `today`, asked for when `mark` was taken."""
        if today == self._day:
            self._known, self.asked = total, True
            self._since -= mark
            self._durable -= mark

    @property
    def today(self) -> Amount:
        """Used today, as far as is known here."""
        return self._known + self._since

    # -- limits ------------------------------------------------------------------------------------------------------

    def _check(self, more: Amount, at: Moment) -> None:
        """Raise unless `more` fits within every limit, beside what is used and held."""
        quota, spent, held = self.quota, self.today, self._held
        if more.requests:
            self._minute("requests", quota.requests_per_minute, self._requests, 0, more.requests, at)
            _day("requests", quota.requests_per_day, spent.requests, held.requests, more.requests, at)
        self._minute("tokens", quota.tokens_per_minute, self._tokens, held.tokens, more.tokens, at)
        _day("tokens", quota.tokens_per_day, spent.tokens, held.tokens, more.tokens, at)
        limit = quota.cost_per_day
        if limit is not None and spent.cost + more.cost > limit:
            raise QuotaSpent("This key's budget for today is spent, or this request would exceed it.")
        if limit is not None and spent.cost + held.cost + more.cost > limit:
            raise Busy("This key's running requests may use up its budget for today.", retry_after=_SOON)

    def _minute(self, kind: str, limit: int | None, window: Window, held: int, more: int, at: Moment) -> None:
        if limit is None:
            return
        used = window.used(at.clock)
        if used + held + more <= limit:
            return
        if more > limit:
            raise Busy(f"This request needs {more} of {limit} {kind} a minute.", retry=False)
        over = used + more - limit
        wait = window.frees(at.clock, over) if over > 0 else _SOON
        raise Busy(f"This key's limit of {limit} {kind} a minute is reached.", retry_after=max(wait, _SOON))

    def shown(self, at: Moment) -> tuple[tuple[str, str], ...]:
        """`x-ratelimit-*`, as OpenAI names and writes them; of a limit by minute and one by day the nearer one."""
        quota, spent = self.quota, self.today + self._held
        requests, tokens = self._requests.used(at.clock), self._tokens.used(at.clock)
        found: list[tuple[str, str]] = []
        for kind, minute, used, window, day, used_today in (
            ("requests", quota.requests_per_minute, requests, self._requests, quota.requests_per_day, spent.requests),
            ("tokens", quota.tokens_per_minute, tokens, self._tokens, quota.tokens_per_day, spent.tokens),
        ):
            held = self._held.tokens if window is self._tokens else 0
            left = [(minute - used - held, minute, window.frees(at.clock, used))] if minute is not None else []
            left += [(day - used_today, day, at.midnight)] if day is not None else []
            if left:
                remaining, limit, reset = min(left)
                found.append((f"x-ratelimit-limit-{kind}", str(limit)))
                found.append((f"x-ratelimit-remaining-{kind}", str(max(0, remaining))))
                found.append((f"x-ratelimit-reset-{kind}", lasting(reset)))
        return tuple(found)


def _day(kind: str, limit: int | None, used: int, held: int, more: int, at: Moment) -> None:
    if limit is None or used + held + more <= limit:
        return
    if used + more > limit:
        message = f"This key's limit of {limit} {kind} a day is reached, or this request would exceed it."
        raise Busy(message, retry=False, retry_after=at.midnight)
    raise Busy(f"This key's running requests may use up its {limit} {kind} a day.", retry_after=_SOON)


def lasting(seconds: float) -> str:
    """A duration as OpenAI writes them: 0s, 850ms, 6m0s, 23h59m1s."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{whole % 60}s"
