"""The contract of conversations that we keep, on whichever database.

What belongs here: from a verb to its work (`owned_work`), and what of a conversation is true at a moment. What never: a
statement, or how a database performs work (`sqlite_owned`, `postgres_owned`).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from proxy.store import owned_work as work
from proxy.store.owned import Begun, Item, Owned
from proxy.store.owned_work import At, Work
from proxy.store.paths import Paths

T = TypeVar("T")
Making = Callable[[], Work[T]]
"""Makes the work anew: it may have to be done twice, where the first was taken back."""


class Database(Protocol):
    """What performs work, in one transaction. `at` is the conversation that it is on, None where it is on many: reads
    come behind this process's own writes on the same."""

    async def read(self, at: At | None, making: Making[T]) -> T: ...

    async def write(self, at: At, making: Making[T]) -> T: ...

    def queue(self, at: At, making: Making[None]) -> Future[None]:
        """Queued when called, durable when awaited; giving up the wait does not take it back."""


class KeptConversations:
    """See `proxy.store.owned.Conversations`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._paths = Paths()

    async def create(self, tenant: str, key: str, owned: Owned, items: Sequence[Item] = ()) -> Owned:
        at = At(tenant, key, owned.id)
        return await self._database.write(at, lambda: work.create(at, owned, items))

    async def find(self, tenant: str, key: str, id: str, now: float) -> Owned | None:
        at = At(tenant, key, id)
        found = await self._database.read(at, lambda: work.find(at))
        return None if found is None else found.at(now)

    async def listed(
        self,
        tenant: str,
        key: str,
        now: float,
        *,
        end_user: str | None = None,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> tuple[Owned, ...]:
        name = "newest" if newest_first else "oldest"
        values: tuple[object, ...] = (tenant, key)
        if end_user is not None:
            name, values = f"{name}.user", (*values, end_user)
        if after is not None:
            name, values = f"{name}.after", (*values, tenant, key, after)
        found = await self._database.read(None, lambda: work.listed(name, (*values, limit)))
        return tuple(each.at(now) for each in found)

    async def describe(self, tenant: str, key: str, id: str, metadata: Mapping[str, str], now: float) -> Owned | None:
        at = At(tenant, key, id)
        found = await self._database.write(at, lambda: work.described(at, metadata, now))
        return None if found is None else found.at(now)

    async def path(self, tenant: str, key: str, id: str) -> tuple[Item, ...]:
        at = At(tenant, key, id)
        known = self._paths.of(at)
        found = await self._database.read(at, lambda: work.shown(at, known))
        self._paths.keep(at, found)
        return found

    async def begin(
        self,
        tenant: str,
        key: str,
        id: str,
        run: str,
        items: Sequence[Item],
        *,
        end_user: str | None,
        now: float,
        seconds: float,
    ) -> Begun | Owned | None:
        at = At(tenant, key, id)
        known = self._paths.of(at)
        begun = await self._database.write(at, lambda: work.begin(at, run, items, end_user, now, seconds, known))
        if isinstance(begun, Begun):
            self._paths.keep(at, begun.path)
        return begun

    async def extend(self, tenant: str, key: str, id: str, items: Sequence[Item], now: float) -> Owned | None:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.extend(at, items, now))

    async def renew(self, tenant: str, key: str, id: str, run: str, until: float) -> bool | None:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.renew(at, run, until))

    async def interject(self, tenant: str, key: str, id: str, items: Sequence[Item], now: float) -> bool:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.interject(at, items, now))

    async def interjected(self, tenant: str, key: str, id: str, run: str) -> tuple[Item, ...]:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.interjected(at, run))

    def finish(
        self, tenant: str, key: str, id: str, run: str, items: Sequence[Item], now: float, *, back: int = 0
    ) -> Future[None]:
        at = At(tenant, key, id)
        return self._database.queue(at, lambda: work.finish(at, run, items, now, back))

    async def cancel(self, tenant: str, key: str, id: str, now: float) -> bool:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.stop(at, now))

    async def rewind(self, tenant: str, key: str, id: str, turns: int, now: float) -> Owned | Literal["busy"] | None:
        at = At(tenant, key, id)
        return await self._database.write(at, lambda: work.rewind(at, turns, now))

    async def delete(self, tenant: str, key: str, id: str, now: float) -> bool | Literal["busy"]:
        at = At(tenant, key, id)
        self._paths.forget(at)
        return await self._database.write(at, lambda: work.delete(at, now))
