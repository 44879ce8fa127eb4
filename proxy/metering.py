"""What the keys of this process use of their limits: who may begin, what is held, what today's rows come to.

Belongs here: between requests, rows and the store's sums on one side and the accounts of `core.quota` on the other.
Never: the arithmetic of a limit, or where limits come from. Nothing is counted for a key without limits.

Minutes are counted in this process alone. Days rest on the rows in the database: their sum is read when a key first
needs it and, where other processes write there too, again once a second or, where that is long work, fifty times as
rarely as it takes.
"""

from __future__ import annotations

import math
from asyncio import Future
from collections.abc import Callable, Mapping
from typing import Final

from proxy.core.quota import DAY, Amount, Held, Meter, Moment, Quota
from proxy.core.usage import UsageRow
from proxy.store import Store

Owner = tuple[str, str]
"""Tenant and key id."""

_FRESH: Final = 1.0
_SHARE: Final = 50


class Metering:
    """The accounts of all keys that have limits, by tenant and key id."""

    def __init__(self, store: Store, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._due = 0.0
        self.meters: dict[Owner, Meter] = {}
        self.seen: set[Owner] = set()
        """The keys that asked for something since this was last cleared."""

    def now(self) -> Moment:
        return Moment(clock=self._clock(), wall=self._wall())

    async def take(self, quotas: Mapping[Owner, Quota]) -> None:
        """Use these limits from here on. Raises StoreUnavailable, and uses the old ones, where today is not known."""
        before, new = self.meters, {owner: Meter(quota) for owner, quota in quotas.items() if owner not in self.meters}
        if any(meter.quota.daily for meter in new.values()):
            await self._sum(new)
        self.meters = {owner: before.get(owner) or new[owner] for owner in quotas}
        for owner, quota in quotas.items():
            self.meters[owner].quota = quota
        if any(meter.quota.daily and not meter.asked for meter in self.meters.values()):
            await self._sum(self.meters)

    @property
    def due(self) -> bool:
        """Whether the sums are old."""
        return self._store.shared and self._clock() >= self._due

    async def look(self) -> None:
        """Read the sums again where they are old. Raises StoreUnavailable."""
        if not self.due:
            return
        began, self._due = self._clock(), math.inf  # who comes meanwhile need not ask
        try:
            await self._sum(self.meters)
        finally:
            self._due = self._clock() + max(_FRESH, _SHARE * (self._clock() - began))

    async def _sum(self, meters: Mapping[Owner, Meter]) -> None:
        today = self.now().today
        for meter in meters.values():
            meter.turn(today)
        marks = {owner: meter.mark() for owner, meter in meters.items()}
        sums = await self._store.spent(float(today * DAY))
        for owner, meter in meters.items():
            meter.told(sums.get(owner, Amount()), marks[owner], today)

    def enter(self, meter: Meter, request: str) -> Held:
        """A request of this id begins. Raises Busy, QuotaSpent."""
        held = self._held[request] = meter.enter(self.now())
        return held

    def leave(self, meter: Meter, request: str, held: Held) -> None:
        """The request is over; what is still written behind it is counted, and no longer held."""
        meter.leave(held)
        if self._held.get(request) is held:
            del self._held[request]

    def close_row(self, row: UsageRow) -> Future[None]:
        """Give a closed row to the store, and count it; durable when awaited."""
        closing = self._store.close_row(row)
        self._count(row, closing)
        return closing

    def _count(self, row: UsageRow, closing: Future[None]) -> None:
        meter = self.meters.get((row.tenant, row.key))
        if meter is None:
            return
        first = row.parent is None and row.purpose != "compaction"
        amount = Amount(int(first), row.input + row.output, row.cost or 0)
        at = self.now()
        meter.used(self._held.get(row.request), amount, at)
        closing.add_done_callback(lambda _: meter.durable(amount, at.today))
