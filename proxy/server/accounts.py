"""The settings of those who call, as this process knows them.

Belongs here: whose settings hold for a call, and how long what was read is believed. What they do is `core.account`'s,
where they are kept the store's. An account is named by tenant, key id and end user, never by less.

Settings are looked up at every call, so they hold for conversations that have begun. A change made through this process
holds from the next call on; one made through another replica within FRESH seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from proxy.core.account import Account
from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Caller
from proxy.store import Store

FRESH: Final = 5.0
"""Seconds that what was read is believed; the bound on how late a change made by another replica is seen."""
_ACCOUNTS: Final = 8192
"""Accounts known at a time; end users may be any number."""


class Accounts:
    """What was read lately. `required`: whether a call may be served where the store cannot be asked."""

    def __init__(self, store: Store, *, required: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._required = required
        self._clock = clock
        self._known: dict[Caller, tuple[Account | None, float]] = {}
        self._era = 0

    async def of(self, caller: Caller) -> Account | None:
        """The settings of the end user that `caller` names, else of its key; None without. Raises StoreUnavailable."""
        now = self._clock()
        known = self._known.get(caller)
        if known is not None and now < known[1]:
            return known[0]
        era = self._era
        try:
            found = await self._store.account(caller.tenant, caller.key, caller.end_user)
        except StoreUnavailable:
            if self._required:
                raise
            return None if known is None else known[0]
        if era == self._era:
            if len(self._known) >= _ACCOUNTS:
                self._known.clear()
            self._known[caller] = found, now + FRESH
        return found

    async def replace(self, caller: Caller, account: Account, now: float) -> None:
        """Replace them whole; durable when this returns. `now` is unix seconds. Raises StoreUnavailable."""
        self._forget(caller)
        try:
            await self._store.set_account(caller.tenant, caller.key, caller.end_user, account, now)
        finally:
            self._forget(caller)

    def _forget(self, caller: Caller) -> None:
        """Nor is anything believed that was asked before."""
        self._era += 1
        self._known.pop(caller, None)
