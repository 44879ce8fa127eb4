"""Who may compact a branch now: one call of this process, and one replica.

A lease is taken before a plan is made and given back when the plan is stored or came to nothing; whoever comes second
waits, within bounds, and looks again at what the first has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex
from typing import Final

from proxy.core.errors import StoreUnavailable
from proxy.store import Store

_LIFE: Final = 150.0
"""Seconds a lease lives: a little more than summaries may take (`summarising.Patience.total`). A process that died
gives way after that; in a file of its own, at once."""
_WAIT: Final = 150.0
"""Seconds a second call waits for the first one's compaction: as long as the first client does."""
_LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at a lease that another replica holds."""


class Leases:
    """All leases of this process. `wall` tells unix seconds, `clock` seconds that never jump."""

    def __init__(self, store: Store, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._clock = clock
        self._owner = token_hex(8)
        self._held: dict[tuple[str, bytes], asyncio.Future[None]] = {}

    @property
    def held(self) -> int:
        return len(self._held)

    async def claim(self, tenant: str, key: bytes) -> tuple[bool, bool]:
        """(whether it is ours to give back, whether nobody was before us).

        A store that is down has no say: then only this process keeps its calls apart.
        """
        running = self._held.get((tenant, key))
        if running is not None:
            await asyncio.wait([running], timeout=_WAIT)
            return False, False
        self._held[tenant, key] = asyncio.get_running_loop().create_future()
        patience = self._clock() + _WAIT
        first = True
        try:
            while not await self._store.claim(tenant, key, self._owner, self._wall(), _LIFE):
                first = False
                if self._clock() >= patience:
                    break
                await asyncio.sleep(_LOOK_AGAIN)
        except StoreUnavailable:
            return True, first
        except BaseException:
            self._leave(tenant, key)
            raise
        return True, first

    async def release(self, tenant: str, key: bytes) -> None:
        """Let the next call go on. Its waiters are woken at once, the store is told when it can be."""
        self._leave(tenant, key)
        try:
            await self._store.release(tenant, key, self._owner)
        except StoreUnavailable:
            return

    def _leave(self, tenant: str, key: bytes) -> None:
        self._held.pop((tenant, key)).set_result(None)
