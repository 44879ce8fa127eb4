"""The store on PostgreSQL: one database, many processes.

What belongs here: the verbs of the contract, each as one journey where that is possible. What never: the statements
(`composing_postgres`), the form of a row (`postgres_rows`), connections (`postgres_pool`), batches (`postgres_commit`).

What is read is read anew each time: another process may have written. Kept is only what nobody changes: the texts of
compactions. Reads of this process come behind its own writes on the same matter, as on SQLite.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from proxy.core.account import Account
from proxy.core.errors import ClientError, StoreUnavailable
from proxy.core.notes import Compaction
from proxy.core.quota import Amount, Quota
from proxy.core.steps import Memory, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store import (
    Calibration,
    Engine,
    KeyRow,
    Standing,
    TraceRow,
    UsageQuery,
    UsageSum,
    postgres_months,
    reports,
    rows,
)
from proxy.store.conversations import KeptConversations
from proxy.store.owned import Conversations
from proxy.store.postgres_changes import upgrade
from proxy.store.postgres_commit import GroupWriter
from proxy.store.postgres_failures import FORBIDDEN, code_of, lost, unavailable
from proxy.store.postgres_owned import InTransactions
from proxy.store.postgres_pool import OPERATION, Connection, Pool, changed
from proxy.store.postgres_presence import Presence
from proxy.store.postgres_rows import TOUCH, Found, Noted, nearest, plain, used
from proxy.store.postgres_statements import NEAR, compiled
from proxy.store.rows import LATELY, REACH
from proxy.store.statements import PURGED

_PAYLOADS: Final = 512
"""Compactions whose text is kept."""
_REPORT: Final = 60.0
"""Seconds that a report, or a slice of a purge, may take."""

Owner = tuple[str, bytes]
T = TypeVar("T")


class PostgresStore:
    """See `proxy.store.Store`. Belongs to the event loop that opened it.

    While the database is gone every verb fails at once, and this process looks for it four times a second.
    """

    shared = True

    def __init__(self, url: str, *, migrate: bool = True, connections: int = 10) -> None:
        self._compiled = compiled()
        self._sql = self._compiled.statements
        self._migrate = migrate
        self._instance = secrets.token_hex(8)
        self._trouble = asyncio.Event()
        self._pool = Pool(url, connections)
        self._writer = GroupWriter(self._pool, self._sql, self._instance, self._trouble.set)
        self._presence = Presence(self._pool, self._sql, self._writer, self._instance, self._trouble)
        self._payloads: OrderedDict[tuple[str, bytes, bytes, str], Compaction | None] = OrderedDict()
        self._opened = False
        self._keeping = InTransactions(self._pool, self._writer, self._sql.owned)
        self.conversations: Conversations | None = KeptConversations(self._keeping)

    # -- life --------------------------------------------------------------------------------------------------------

    async def open(self, now: float) -> int:
        try:
            await self._pool.start()
            await upgrade(self._pool, self._compiled, allowed=self._migrate)
            left_open = await self._presence.start(now)
        except Exception as failure:
            await self._pool.close()
            raise unavailable(failure) from None
        self._writer.start()
        self._opened = True
        return left_open

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._keeping.drain()
            await self._writer.stop()
            await self._presence.stop()
            await self._pool.close()

    async def engine(self) -> Engine:
        found = await self._fetch(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        )
        version, fsync, commits = found[0]
        way = "through a pooler" if self._pool.pooled else "directly"
        off = [
            f"{name} is off" for name, value in (("fsync", fsync), ("synchronous_commit", commits)) if value == "off"
        ]
        return Engine(name=f"PostgreSQL {version.partition(' ')[0]}, {way}", doubt=" and ".join(off))

    async def ready(self) -> None:
        if not self._opened:
            raise StoreUnavailable("The store is closed.")
        try:
            await self._presence.beat()
        except Exception as failure:
            raise unavailable(failure) from None

    def _check(self) -> None:
        """Where writing fails no call may begin: it could not be accounted for."""
        if (failing := self._writer.failing or self._pool.down) is not None:
            raise StoreUnavailable(failing.message, code=failing.code)

    async def _read(
        self, ask: Callable[[Connection], Awaitable[T]], topic: Hashable = None, *, seconds: float = OPERATION
    ) -> T:
        """What `ask` reads, behind what this process is writing on `topic`. Once more where the connection was lost."""
        if topic is not None:
            await self._writer.settled(topic)
        # One statement needs no transaction, unless it may take longer than others.
        lent = self._pool.transaction if seconds > OPERATION else self._pool.connection
        try:
            try:
                async with lent(seconds=seconds) as connection:
                    return await ask(connection)
            except Exception as failure:
                if not lost(failure):
                    raise
            async with lent(seconds=seconds) as connection:
                return await ask(connection)
        except Exception as failure:
            self._noticed(failure)
            raise unavailable(failure) from None

    async def _fetch(self, sql: str, *values: object, topic: Hashable = None, seconds: float = OPERATION) -> list[Any]:
        return await self._read(lambda connection: connection.fetch(sql, *values), topic, seconds=seconds)

    @asynccontextmanager
    async def _writing(self, topic: Hashable = None, *, seconds: float = OPERATION) -> AsyncIterator[Connection]:
        """A transaction of its own. Whoever reads on `topic` from here on comes behind it."""
        written = None if topic is None else self._writer.expect(topic)
        try:
            async with self._pool.transaction(seconds=seconds) as connection:
                yield connection
        except Exception as failure:
            self._noticed(failure)
            raise unavailable(failure) from None
        finally:
            if written is not None:
                written.set_result(None)

    async def _flush(self) -> None:
        """Come behind all that was queued."""
        try:
            await self._writer.flush()
        except StoreUnavailable:
            if not self._opened:
                raise
            # An opening was lost: what is there is there.

    def _noticed(self, failure: Exception) -> None:
        if lost(failure) or self._pool.down is not None:
            self._trouble.set()

    async def secret(self, purpose: str) -> bytes:
        """Insert or ignore, then read: whoever comes first decides, and all agree."""
        async with self._writing() as connection:
            await connection.execute(self._sql.add["secret"], purpose, secrets.token_bytes(32))
            value: bytes = await connection.fetchval(self._sql.secret, purpose)
        return value

    # -- memory ------------------------------------------------------------------------------------------------------

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory:
        self._check()
        owner, path = (tenant, ask.scope), ask.digests
        label = None if ask.label is None else plain(ask.label)
        found = await self._found(owner, ask, label)
        talk = self._conversation(found, path, label)
        hidden = rows.choose(tuple(_oldest_first(found, path)), label, frozenset(path)) if ask.named else ()
        noted = nearest(found, path, REACH)
        notes = [each for each in await self._notes(owner, noted) if each is not None]
        notes.sort(key=lambda each: (each.messages, each.id))
        self._touch(owner, talk, noted, now)
        for row in hidden:
            self._writer.later(f"{TOUCH}hidden", used((*owner, row.digest, plain(ask.agent), row.id), now))
        return Memory(
            conversation=None if talk is None else talk[0],
            compactions=tuple(notes),
            anchor=found.anchor(path),
            hidden=tuple(map(rows.told, hidden)),
        )

    async def _found(self, owner: Owner, ask: Recall, label: str | None) -> Found:
        """One question, and a second where the history is long and none of its newest boundaries is known."""
        path, found = ask.digests, Found()
        values = (*owner, path[:NEAR], path, path if ask.named else (), plain(ask.agent), label)
        found.take(await self._fetch(self._sql.recall, *values, topic=owner))
        if len(path) > NEAR and found.anchor(path) is None:
            found.take(await self._fetch(self._sql.farther, *owner, path[NEAR:]))
        return found

    def _conversation(self, found: Found, path: Sequence[bytes], label: str | None) -> tuple[str, float | None] | None:
        """The label's own; else that of the longest known prefix, unless it bears another label (a fork)."""
        if found.labelled is not None:
            return found.labelled, None
        known = found.conversation(path)
        if known is None or (label is not None and known[1] not in (None, label)):
            return None
        return known[0], known[2]

    async def _notes(self, owner: Owner, noted: Sequence[Noted]) -> list[Compaction | None]:
        """What the compactions say: what is not known here is asked for. They never change."""
        missing = [each for each in noted if (*owner, each.digest, each.id) not in self._payloads]
        if missing:
            places = ([each.digest for each in missing], [each.id for each in missing])
            for digest, id, payload in await self._fetch(self._sql.payloads, *owner, *places):
                self._payloads[*owner, digest, id] = rows.readable(payload, Compaction)
        names = [(*owner, each.digest, each.id) for each in noted]
        said = [self._payloads.get(name) for name in names]
        for name in names:
            if name in self._payloads:
                self._payloads.move_to_end(name)
        while len(self._payloads) > _PAYLOADS:
            self._payloads.popitem(last=False)
        return said

    def _touch(self, owner: Owner, talk: tuple[str, float | None] | None, noted: Sequence[Noted], now: float) -> None:
        """Mark as used what this history rests on: retention runs from the last use of the branch."""
        if talk is not None and (talk[1] is None or now - talk[1] >= LATELY):
            self._writer.later(f"{TOUCH}conversation", used((*owner, talk[0]), now))
        for each in noted:
            if now - each.used >= LATELY:
                self._writer.later(f"{TOUCH}compaction", used((*owner, each.digest, each.id), now))

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        return self._writer.remember(tenant, what, now)

    async def traces(self, tenant: str, scope: bytes, conversation: str) -> tuple[TraceRow, ...]:
        topic = (tenant, scope)
        found = await self._fetch(self._sql.traces, tenant, scope, plain(conversation), topic=topic)
        return tuple(TraceRow(kind=kind, skill=skill, agent=agent, at=at) for kind, skill, agent, at in found)

    async def result(self, tenant: str, scope: bytes, reference: str) -> str | None:
        found = await self._fetch(self._sql.result, tenant, scope, plain(reference), topic=(tenant, scope))
        return bytes(found[0][0]).decode("utf-8", "surrogatepass") if found else None

    async def claim(self, tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        values = (tenant, key, owner, now + seconds, self._instance, now)
        async with self._writing() as connection:
            return changed(await connection.execute(self._sql.claim, *values)) > 0

    async def release(self, tenant: str, key: bytes, owner: str) -> None:
        async with self._writing() as connection:
            await connection.execute(self._sql.release, tenant, key, owner)

    # -- usage -------------------------------------------------------------------------------------------------------

    def open_row(self, row: UsageRow) -> None:
        self._check()
        self._writer.open_row(row)

    async def opened(self) -> None:
        await self._writer.flush()

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        return self._writer.close_row(row)

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow] | Sequence[UsageSum]:
        sql, values = reports.asked(self._compiled.reports, query)
        await self._flush()
        return reports.read(query, await self._fetch(sql, *values, seconds=_REPORT))

    # -- what the installation knows ---------------------------------------------------------------------------------

    async def calibrations(self) -> tuple[Calibration, ...]:
        found = await self._fetch(self._sql.calibrations)
        read = (rows.readable(payload, Calibration) for (payload,) in found)
        return tuple(calibration for calibration in read if calibration is not None)

    async def calibrate(self, what: Calibration) -> None:
        async with self._writing() as connection:
            values = (plain(what.upstream), plain(what.model), rows.encode(what))
            await connection.execute(self._sql.calibrate, *values)

    async def keys(self) -> tuple[KeyRow, ...]:
        return tuple(map(rows.key, await self._fetch(self._sql.keys)))

    async def add_key(self, tenant: str, row: KeyRow) -> None:
        """Raises ClientError where the id is taken: a key is replaced by a new one, never changed."""
        values = (tenant, row.id, row.digest, row.created_at, row.revoked_at, rows.encode(row.models))
        async with self._writing() as connection:
            if not changed(await connection.execute(self._sql.add["client_key"], *values)):
                raise ClientError("A key with this id exists.", code="key_exists", param="id")
            await connection.execute(self._sql.revise, "keys")

    async def revoke_key(self, tenant: str, id: str, now: float) -> bool:
        async with self._writing() as connection:
            if not changed(await connection.execute(self._sql.revoke_key, now, tenant, id)):
                return False
            await connection.execute(self._sql.revise, "keys")
        return True

    async def revision(self) -> int:
        found = await self._fetch(self._sql.revision, "keys")
        return int(found[0][0]) if found else 0

    async def standings(self) -> tuple[Standing, ...]:
        return tuple(map(rows.standing, await self._fetch(self._sql.standing["standings"])))

    async def set_quota(self, tenant: str, key: str, quota: Quota) -> None:
        async with self._writing() as connection:
            await connection.execute(self._sql.standing["set_quota"], tenant, key, rows.encode(quota), None)
            await connection.execute(self._sql.revise, "keys")

    async def mark_used(self, tenant: str, key: str, at: float) -> None:
        async with self._writing() as connection:
            await connection.execute(self._sql.standing["mark_used"], tenant, key, rows.encode(Quota()), at)

    async def spent(self, since: float) -> Mapping[tuple[str, str], Amount]:
        return rows.spent(await self._fetch(self._sql.standing["spent"], since, seconds=_REPORT))

    async def account(self, tenant: str, key: str, user: str | None) -> Account | None:
        found = await self._fetch(self._sql.account, tenant, key, plain(user or ""), topic=("account", tenant))
        return rows.readable(found[0][0], Account) if found else None

    async def set_account(self, tenant: str, key: str, user: str | None, account: Account, now: float) -> None:
        owner = (tenant, key, plain(user or ""))
        async with self._writing(("account", tenant)) as connection:
            if account == Account():
                await connection.execute(self._sql.drop_account, *owner)
            else:
                await connection.execute(self._sql.set_account, *owner, rows.encode(account), now)

    # -- retention ---------------------------------------------------------------------------------------------------

    async def purge(self, tenant: str, before: float) -> int:
        """In slices, so that calls are served in between."""
        await self._flush()
        gone = 0
        for sql in self._sql.purge.values():
            values: tuple[Any, ...] = (tenant, before, before)[: 3 if "$3" in sql else 2]
            slice = PURGED
            while slice == PURGED:
                async with self._writing(seconds=_REPORT) as connection:
                    slice = changed(await connection.execute(sql, *values))
                gone += slice
        self._payloads.clear()
        try:
            return gone + await self._keeping.purge(tenant, before)
        except Exception as failure:
            raise unavailable(failure) from None

    async def retire(self, before: float) -> int:
        """Months of usage rows that ended before it go whole; the rest tenant by tenant, and all of it where this user
        may drop no table."""
        gone, tenant = 0, ""
        try:
            gone = await postgres_months.drop(self._pool, before)
        except Exception as failure:
            if code_of(failure) != FORBIDDEN:
                raise unavailable(failure) from None
        while (tenant := await self._tenant_after(tenant)) != "":
            gone += await self.purge(tenant, before)
        return gone

    async def _tenant_after(self, last: str) -> str:
        found = await self._fetch(self._sql.tenant_after, last, last, seconds=_REPORT)
        return min((name for (name,) in found if name is not None), default="")


def _oldest_first(found: Found, path: Sequence[bytes]) -> list[rows.HiddenRow]:
    place = {digest: -number for number, digest in enumerate(path)}
    return sorted(found.hidden, key=lambda row: (place[row.digest], row.id))
