"""Keys that another replica added, changed or revoked.

Belongs here: noticing. Never: what a key opens (`auth`), or how changes are counted (the store). A small number is
asked for twice a second, rather than being told of changes: a pooler in front of PostgreSQL passes no notices on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.core.errors import StoreUnavailable
from proxy.store import Store

_EVERY: Final = 0.4
"""Seconds between two looks: what was revoked opens nothing a second later."""


async def follow(store: Store, refresh: Callable[[], Awaitable[None]]) -> None:
    """Call `refresh` whenever keys have changed elsewhere, and once at the beginning. Runs until it is cancelled."""
    if not store.shared:
        return
    known: int | None = None
    while True:
        try:
            number = await store.revision()
            if number != known:
                await refresh()
                known = number
        except StoreUnavailable:
            pass  # calls are refused meanwhile, and the number is looked at again
        await asyncio.sleep(_EVERY)
