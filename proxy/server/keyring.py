"""The client keys in force, and their limits: from the configuration and the store into one snapshot, again and again.

Belongs here: when keys are read, and keeping when each was used. Never: what a key proves (`auth`), or whose limits are
which (`quotas`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from proxy.core.errors import StoreUnavailable
from proxy.logs import log
from proxy.metering import Metering
from proxy.server.auth import Keys, key_digest, keys_of
from proxy.server.quotas import Rules, rules
from proxy.settings import Settings
from proxy.store import KeyRow, Store

_MINUTE = 60.0


class Refused(Exception):
    """The configuration must not be served; the text says why."""


class Keyring:
    """`use` takes each snapshot; `metering` is given their limits once there is one."""

    def __init__(self, settings: Settings, store: Store, use: Callable[[Keys], None]) -> None:
        self._settings = settings
        self._store = store
        self._use = use
        self._marked = time.monotonic()
        self._until = 0.0
        self._known: frozenset[tuple[str, str]] = frozenset()
        self.pepper = b""
        self.metering: Metering | None = None

    async def open(self) -> None:
        """Read them for the first time. Raises Refused, StoreUnavailable."""
        self.pepper = await self._store.secret("keys")
        await self.read()

    async def read(self) -> None:
        """Take the configured and the stored keys into use; callers of a revoked or stopped one are refused from here
        on. Raises Refused, StoreUnavailable."""
        secret = self._settings.admin.secret
        admin = key_digest(self.pepper, secret.reveal().encode()) if secret is not None else None
        rows = (*self.configured(), *await self._store.keys())
        rules = await self.rules()
        try:
            keys = keys_of(rows, self.pepper, admin=admin, limits=rules.of, now=time.time())
        except ValueError as error:
            message = f"{error}; revoke one with `weirgate keys revoke`, or rename it in the configuration"
            raise Refused(message) from None
        self._until, self._known = keys.until, frozenset(keys.patterns)
        self._use(keys)
        if self.metering is not None:
            await self.metering.take(keys.quotas)

    async def again(self) -> None:
        """The same, once they are in use: what must not be served leaves them as they are, and is logged. Raises
        StoreUnavailable."""
        try:
            await self.read()
        except Refused as error:
            await asyncio.to_thread(log, "error", "keys kept as they were", problems=[str(error)])

    async def look_after(self) -> None:
        """To be called now and then: keys whose time is over are closed, and their uses kept once a minute."""
        if time.time() >= self._until:
            with contextlib.suppress(StoreUnavailable):  # it is tried again
                await self.again()
        if time.monotonic() - self._marked >= _MINUTE:
            await self.mark_used()

    async def mark_used(self) -> None:
        """Keep when each key was last used."""
        self._marked = time.monotonic()
        if self.metering is None:
            return
        seen, self.metering.seen = self.metering.seen, set()
        for tenant, key in seen & self._known:
            with contextlib.suppress(StoreUnavailable):
                await self._store.mark_used(tenant, key, time.time())

    async def rules(self) -> Rules:
        """Whose limits are which. Raises StoreUnavailable."""
        configured = {(key.tenant, key.id): key.limits.quota() for key in self._settings.keys}
        return rules(self._settings.key_limits.quota(), configured, await self._store.standings())

    def configured(self) -> tuple[KeyRow, ...]:
        """The keys of the configuration file."""
        return tuple(
            KeyRow(
                id=key.id,
                tenant=key.tenant,
                digest=key_digest(self.pepper, key.secret.reveal().encode()),
                created_at=0.0,
                models=key.models,
            )
            for key in self._settings.keys
        )
