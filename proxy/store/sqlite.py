"""The store on SQLite: one file, one process, no server.

What belongs here: the verbs of the contract, each as one piece of work for the thread of `group_commit`, and what is
answered from `recent` without asking it. What never: the statements (`statements`), the form of a row (`rows`), opening
the file (`sqlite_file`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from sqlite3 import Connection

import msgspec

from proxy.core.account import Account
from proxy.core.errors import ClientError, StoreUnavailable
from proxy.core.notes import Compaction
from proxy.core.quota import Amount, Quota
from proxy.core.steps import Anchor, Memory, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store import (
    Calibration,
    Engine,
    KeyRow,
    Standing,
    TraceRow,
    UsageQuery,
    UsageSum,
    owned_work,
    reports,
    rows,
    sqlite_owned,
    statements,
)
from proxy.store.conversations import KeptConversations
from proxy.store.group_commit import GroupCommit, Job, Kind, barrier
from proxy.store.owned import Conversations
from proxy.store.recent import Absent, Owner, Recent
from proxy.store.rows import LATELY, REACH, Known
from proxy.store.sqlite_file import MEMORY, PLACES, Connect, DatabaseFile, connect, finish, secret
from proxy.store.sqlite_owned import OnThread
from proxy.store.statements import CONTENT, PURGED

_HELD_PAGES = 16_384
"""Pages (of 4 KiB) that content may take in memory where none may be at rest."""

_PROBE = "x" * 16_384


def from_url(url: str, *, content: bool = True, migrate: bool = True) -> SqliteStore:
    """The store that `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite://` (in memory) names.

    Raises ValueError for any other address. With `content` False, what people and models said is kept in memory only.
    """
    scheme, found, rest = url.partition("://")
    if scheme != "sqlite" or not found or (rest and not rest.startswith("/")):
        raise ValueError("store.url must be sqlite:///file.db, sqlite:////absolute/file.db or sqlite:// (in memory)")
    path = rest[1:] if rest else ""
    return SqliteStore(MEMORY if path in ("", MEMORY) else path, content=content, migrate=migrate)


class SqliteStore:
    """See `proxy.store.Store`. Belongs to the event loop that opened it.

    While writing fails, `recall` and `open_row` fail as well: no upstream call is made that cannot be accounted for.
    Each tries again, so the store recovers by itself.
    """

    shared = False

    def __init__(self, path: str, *, content: bool = True, migrate: bool = True, connect: Connect = connect) -> None:
        compiled = statements.compiled()
        self._sql, self._reports = compiled.statements, compiled.reports
        self._file = DatabaseFile(path, content=content, migrate=migrate, connect=connect)
        self._content = content
        self._absent = Absent()
        self._recent = Recent(self._absent)
        self._places = iter(PLACES)
        self._place, self._after = next(self._places), 0
        self._probing: asyncio.Future[None] | None = None
        self._unset: set[str] = set()
        """Tenants of whom nobody has settings: most. Nobody else writes to this file."""
        self._accounts_era = 0
        self._thread = GroupCommit(
            self._sql, lambda: self._file.open(self._sql), check=self._file.check, spare=self._load, finish=self._finish
        )
        self.conversations: Conversations | None = (
            KeptConversations(OnThread(self._thread, self._sql.owned)) if content else None
        )
        """Those that we keep; None where no content may be at rest."""

    # -- life --------------------------------------------------------------------------------------------------------

    async def open(self, now: float) -> int:
        return await self._thread.start()

    async def close(self) -> None:
        await self._thread.stop()

    async def engine(self) -> Engine:
        return Engine(name=f"SQLite {sqlite3.sqlite_version}")

    async def ready(self) -> None:
        """Write, and take it back: the only proof that the disk has room."""
        await self._thread.write(_probe)

    def _load(self, connection: Connection) -> bool:
        """A slice of the shown prefixes in the file; whether there is more."""
        if not self._place:
            return False
        try:
            found = connection.execute(self._place, (self._after,)).fetchall()
        except sqlite3.Error:
            self._place = ""  # nothing is certain then, and each recall asks the database, which says what it is
            return False
        if found:
            self._absent.load(digest for _, digest in found)
            self._after = found[-1][0]
            return True
        self._after, self._place = 0, next(self._places, "")
        self._absent.complete = not self._place
        return not self._absent.complete

    def _finish(self, connection: Connection) -> None:
        finish(connection)
        self._file.release()

    async def secret(self, purpose: str) -> bytes:
        return await self._thread.write(lambda connection: secret(connection, self._sql, purpose))

    # -- memory ------------------------------------------------------------------------------------------------------

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory:
        if self._thread.failing is not None:
            await self.ready()
        owner, label = (tenant, ask.scope), _storable(ask.label)
        stored, unseen = self._recent.lookup(owner, ask.digests)
        labelled = None if label is None else self._recent.label(owner, label)
        if unseen or (label is not None and labelled is None):
            stored, labelled = await self._read(owner, ask, label, stored, unseen)
        conversation = labelled or next((known.conversation for _, known in stored if known.conversation), None)
        if conversation is not None and conversation is not labelled and label is not None:
            conversation = await self._unless_forked(owner, label, conversation)
        anchor: Anchor | None = None
        compactions: list[Compaction] = []
        hidden: tuple[rows.HiddenRow, ...] = ()
        hiding = False
        for _, known in stored:
            anchor = anchor or known.anchor
            if known.payloads:
                if len(compactions) < REACH:
                    compactions += known.compactions()
                else:
                    known.read = None  # too far back to be of use, and large
            hiding = hiding or known.hidden
        if len(compactions) > 1:
            compactions.sort(key=lambda found: (found.messages, found.id))
        if ask.named and hiding:
            hidden = await self._hidden(tenant, ask, label, stored, now)
        self._touch(owner, conversation, stored, now)
        return Memory(
            conversation=conversation,
            compactions=tuple(compactions),
            anchor=anchor,
            hidden=tuple(map(rows.told, hidden)),
        )

    async def _read(
        self, owner: Owner, ask: Recall, label: str | None, stored: list[tuple[bytes, Known]], unseen: list[bytes]
    ) -> tuple[list[tuple[bytes, Known]], str | None]:
        """Ask the database for what is not known here, and keep the answer."""
        era = self._recent.era

        def read(connection: Connection) -> tuple[dict[bytes, Known], str | None]:
            known = rows.known_at(connection, self._sql, *owner, unseen)
            return known, None if label is None else rows.labelled(connection, self._sql, *owner, label)

        found, labelled = await self._thread.read(read)
        self._recent.keep(owner, unseen, found, era)
        if label is not None and labelled is not None:
            self._recent.keep_label(owner, label, labelled, era)
        everything = found | dict(stored)
        return [(digest, everything[digest]) for digest in ask.digests if digest in everything], labelled

    async def _unless_forked(self, owner: Owner, label: str, found: str) -> str | None:
        """The conversation of the longest known prefix; one that bears another label is not taken over (a fork)."""
        theirs = await self._thread.read(lambda connection: rows.label_of(connection, self._sql, *owner, found))
        return found if theirs in (None, label) else None

    async def _hidden(
        self, tenant: str, ask: Recall, label: str | None, stored: list[tuple[bytes, Known]], now: float
    ) -> tuple[rows.HiddenRow, ...]:
        """Oldest first."""
        places = [digest for digest, known in reversed(stored) if known.hidden]
        found = await self._thread.read(lambda connection: rows.hidden_at(connection, self._sql, tenant, ask, places))
        chosen = rows.choose(found, label, frozenset(ask.digests))
        for row in chosen:
            self._used("hidden", tenant, ask.scope, (row.digest, ask.agent, row.id), now)
        return chosen

    def _touch(self, owner: Owner, conversation: str | None, stored: list[tuple[bytes, Known]], now: float) -> None:
        """Mark as used what this history rests on: retention runs from the last use of the branch."""
        first = True
        for digest, known in stored:
            if not first and not known.payloads:
                continue
            first = False
            if now - known.touched < LATELY:
                continue
            known.touched = now
            if conversation is not None:
                self._used("conversation", *owner, (conversation,), now)
            # Those out of reach live as long as their conversation is used.
            for found in known.read or ():
                self._used("compaction", *owner, (digest, found.id), now)

    def _used(self, table: str, tenant: str, scope: bytes, keys: tuple[object, ...], now: float) -> None:
        values = (now, tenant, scope, *keys, now - LATELY)
        self._thread.later(Kind.RUN, (self._sql.touch[table], values))

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        if what.label is not None:
            what = msgspec.structs.replace(what, label=_storable(what.label))
        owner, places, era = (tenant, what.scope), rows.written(what), self._recent.era
        before = self._recent.certain(owner, places)
        left = None if before is None else rows.left(before, what, now)
        if before is not None and left == before:
            return self._thread.nothing()  # a call that was answered so before

        def write(connection: Connection) -> tuple[dict[bytes, Known], str | None]:
            rows.remember(connection, self._sql, tenant, what, now)
            if left is not None:
                return left, None
            if not self._content:
                self._bound_content(connection)
            found = rows.known_at(connection, self._sql, *owner, places)
            for known in found.values():
                known.touched = now
            return found, None if what.label is None else rows.labelled(connection, self._sql, *owner, what.label)

        def then(job: Job) -> None:
            found, labelled = job.result or (None, None)
            job.result = None
            self._recent.settle(owner, places, found, era)
            if what.label is not None and labelled is not None:
                self._recent.keep_label(owner, what.label, labelled, era)

        answer = self._thread.remember(write, then)
        if not answer.done():
            self._recent.expect(owner, places)  # no await lies between: nothing can be looked up in the meantime
        return answer

    def _bound_content(self, connection: Connection) -> None:
        """Content that lives in memory only is bounded: the longest unused goes."""
        used = connection.execute("PRAGMA temp.page_count").fetchone()[0]
        free = connection.execute("PRAGMA temp.freelist_count").fetchone()[0]
        if used - free <= _HELD_PAGES:
            return
        for table in CONTENT:
            connection.execute(
                f"DELETE FROM temp.{table} WHERE rowid IN (SELECT rowid FROM temp.{table}"
                f" ORDER BY last_used, rowid LIMIT 1 + (SELECT count(*) FROM temp.{table}) / 4)"
            )

    async def traces(self, tenant: str, scope: bytes, conversation: str) -> tuple[TraceRow, ...]:
        return await self._thread.read(
            lambda connection: rows.traces(connection, self._sql, tenant, scope, conversation)
        )

    async def result(self, tenant: str, scope: bytes, reference: str) -> str | None:
        def read(connection: Connection) -> bytes | None:
            return rows.payload_of(connection, self._sql, tenant, scope, reference)

        found = await self._thread.read(read)
        return None if found is None else found.decode("utf-8", "surrogatepass")

    async def claim(self, tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        values = (tenant, key, owner, now + seconds, now)
        return await self._thread.write(lambda connection: connection.execute(self._sql.claim, values).rowcount > 0)

    async def release(self, tenant: str, key: bytes, owner: str) -> None:
        await self._thread.write(lambda connection: connection.execute(self._sql.release, (tenant, key, owner)))

    # -- usage -------------------------------------------------------------------------------------------------------

    def open_row(self, row: UsageRow) -> None:
        if (failing := self._thread.failing) is not None:
            self._probe_again()
            raise StoreUnavailable(failing.message, code=failing.code)
        self._thread.open_row(row)

    def _probe_again(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = self._thread.submit(Kind.WRITE, _probe)
            self._probing.add_done_callback(lambda probe: probe.cancelled() or probe.exception())

    async def opened(self) -> None:
        await self._thread.write(barrier)

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        return self._thread.close_row(row)

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow] | Sequence[UsageSum]:
        return await self._thread.read(lambda connection: reports.usage(connection, self._reports, query))

    # -- what the installation knows ---------------------------------------------------------------------------------

    async def calibrations(self) -> tuple[Calibration, ...]:
        def read(connection: Connection) -> tuple[Calibration, ...]:
            found = connection.execute(self._sql.calibrations).fetchall()
            read = (rows.readable(payload, Calibration) for (payload,) in found)
            return tuple(calibration for calibration in read if calibration is not None)

        return await self._thread.read(read)

    async def calibrate(self, what: Calibration) -> None:
        values = (what.upstream, what.model, rows.encode(what))
        await self._thread.write(lambda connection: connection.execute(self._sql.calibrate, values))

    async def keys(self) -> tuple[KeyRow, ...]:
        return await self._thread.read(lambda connection: rows.keys(connection, self._sql))

    async def add_key(self, tenant: str, row: KeyRow) -> None:
        """Raises ClientError where the id is taken: a key is replaced by a new one, never changed."""
        values = (tenant, row.id, row.digest, row.created_at, row.revoked_at, rows.encode(row.models))

        def write(connection: Connection) -> None:
            if connection.execute(self._sql.add["client_key"], values).rowcount <= 0:
                raise ClientError("A key with this id exists.", code="key_exists", param="id")

        await self._thread.write(write)

    async def revoke_key(self, tenant: str, id: str, now: float) -> bool:
        values = (now, tenant, id)
        return await self._thread.write(
            lambda connection: connection.execute(self._sql.revoke_key, values).rowcount > 0
        )

    async def standings(self) -> tuple[Standing, ...]:
        sql = self._sql.standing["standings"]
        found = await self._thread.read(lambda connection: connection.execute(sql).fetchall())
        return tuple(map(rows.standing, found))

    async def set_quota(self, tenant: str, key: str, quota: Quota) -> None:
        values = (tenant, key, rows.encode(quota), None)
        await self._thread.write(lambda connection: connection.execute(self._sql.standing["set_quota"], values))

    async def mark_used(self, tenant: str, key: str, at: float) -> None:
        values = (tenant, key, rows.encode(Quota()), at)
        await self._thread.write(lambda connection: connection.execute(self._sql.standing["mark_used"], values))

    async def spent(self, since: float) -> Mapping[tuple[str, str], Amount]:
        sql = self._sql.standing["spent"]
        return rows.spent(await self._thread.read(lambda connection: connection.execute(sql, (since,)).fetchall()))

    async def revision(self) -> int:
        return 0  # one process, which told itself

    async def account(self, tenant: str, key: str, user: str | None) -> Account | None:
        if tenant in self._unset:
            return None
        owner, era = (tenant, key, user or ""), self._accounts_era

        def read(connection: Connection) -> tuple[Account | None, bool]:
            found = connection.execute(self._sql.account, owner).fetchone()
            if found is not None:
                return rows.readable(found[0], Account), True
            return None, connection.execute(self._sql.any_account, (tenant,)).fetchone() is not None

        account, any_set = await self._thread.read(read)
        if not any_set and era == self._accounts_era:
            self._unset.add(tenant)
        return account

    async def set_account(self, tenant: str, key: str, user: str | None, account: Account, now: float) -> None:
        owner = (tenant, key, user or "")

        def write(connection: Connection) -> None:
            if account == Account():
                connection.execute(self._sql.drop_account, owner)
            else:
                connection.execute(self._sql.set_account, (*owner, rows.encode(account), now))

        # No await lies between: who asks from here on is behind this write, and who asked before keeps nothing.
        self._accounts_era += 1
        self._unset.discard(tenant)
        await self._thread.write(write)

    # -- retention ---------------------------------------------------------------------------------------------------

    async def purge(self, tenant: str, before: float) -> int:
        """In slices, so that calls are served in between."""
        self._recent.forget()
        gone = 0
        try:
            for table, sql in self._sql.purge.items():
                gone += await self._purge(sql, tenant, before)
                if not self._content and table in CONTENT:
                    # What an earlier run without this setting left in the file.
                    gone += await self._purge(sql.replace(f"FROM {table}", f"FROM main.{table}"), tenant, before)
            gone += await self._purge_owned(tenant, before)
        finally:
            self._recent.forget()
        await self._thread.write(lambda connection: connection.execute("PRAGMA incremental_vacuum(2000)").fetchall())
        return gone

    async def retire(self, before: float) -> int:
        gone, tenant = 0, ""
        while (tenant := await self._tenant_after(tenant)) != "":
            gone += await self.purge(tenant, before)
        return gone

    async def _tenant_after(self, last: str) -> str:
        sql, values = self._sql.tenant_after, (last, last)
        found = await self._thread.read(lambda connection: connection.execute(sql, values).fetchall())
        return min((name for (name,) in found if name is not None), default="")

    async def _purge(self, sql: str, tenant: str, before: float) -> int:
        values = (tenant, before, before)[: sql.count("?")]
        gone = 0
        while True:
            slice = await self._thread.write(lambda connection: connection.execute(sql, values).rowcount)
            gone += slice
            if slice < PURGED:
                return gone

    async def _purge_owned(self, tenant: str, before: float) -> int:
        gone = 0
        while True:
            some, deleted = await self._thread.write(
                lambda connection: sqlite_owned.purge(connection, self._sql.owned, tenant, before)
            )
            gone += deleted
            if some < owned_work.PURGED:
                return gone


def _probe(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO lease (tenant, key, owner, expires_at) VALUES ('', x'', ?, 0)"
        " ON CONFLICT (tenant, key) DO UPDATE SET owner = excluded.owner",
        (_PROBE,),
    )
    connection.execute("DELETE FROM lease WHERE tenant = '' AND key = x''")


def _storable(label: str | None) -> str | None:
    """A label is the client's text: what UTF-8 cannot hold is written out."""
    return None if label is None else label.encode("utf-8", "backslashreplace").decode("utf-8")
