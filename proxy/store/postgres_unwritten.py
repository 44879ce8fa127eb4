"""The store on PostgreSQL where no content may be at rest: what people and models said stays in this process.

What belongs here: which verbs are about content. What never: how either half works. Recognition, usage and all else go
to the database; compactions, hidden state and cut results to `held`, so each replica makes its own notes.
"""

from __future__ import annotations

import asyncio

import msgspec

from proxy.core.steps import Memory, Recall, Remember
from proxy.store import rows
from proxy.store.held import Held
from proxy.store.postgres import PostgresStore
from proxy.store.rows import REACH


class UnwrittenStore(PostgresStore):
    """See `PostgresStore`."""

    def __init__(self, url: str, *, migrate: bool = True, connections: int = 10) -> None:
        super().__init__(url, migrate=migrate, connections=connections)
        self._held = Held()
        self.conversations = None

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory:
        memory = await super().recall(tenant, ask, now)
        owner = (tenant, ask.scope)
        hidden = rows.choose(self._held.hidden(owner, ask), ask.label, frozenset(ask.digests)) if ask.named else ()
        self._held.use(owner, memory.conversation, now)
        return msgspec.structs.replace(
            memory,
            compactions=self._held.compactions(owner, ask.digests, REACH),
            hidden=tuple(map(rows.told, hidden)),
        )

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        self._held.remember(tenant, what, now)
        bare = msgspec.structs.replace(what, compaction=None, hidden=None, results=())
        return super().remember(tenant, bare, now)

    async def result(self, tenant: str, scope: bytes, reference: str) -> str | None:
        return self._held.result((tenant, scope), reference)

    async def purge(self, tenant: str, before: float) -> int:
        """Also what an earlier run without this setting left in the database."""
        return await super().purge(tenant, before) + self._held.purge(tenant, before)
