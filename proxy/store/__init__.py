"""The contract of the database. Its fulfilments are named after what they adapt; only `app` names them.

Every verb takes the tenant first, and no statement reads a row without it. The store writes what it is given: ids,
times and digests are made above it. Compactions, hidden state and results are immutable: insert or ignore. What is
awaited is durable. A connection whose operation was cancelled is not used again.

Raises `StoreUnavailable` where the database cannot be read or written.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from proxy.core.account import Account
from proxy.core.quota import Amount, Quota
from proxy.core.steps import Limits, Memory, Ratio, Recall, Remember
from proxy.core.usage import UsageRow


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A client key: `digest` is the keyed hash of its secret, the only form in which it is kept."""

    id: str
    tenant: str
    digest: bytes
    created_at: float
    revoked_at: float | None = None
    models: tuple[str, ...] = ("*",)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator set for a key while the server ran, and when it was last used (unix seconds, to the minute).
    `key` "": for all keys of the tenant."""

    tenant: str
    key: str
    quota: Quota = Quota()
    last_used: float | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps the data, in words. `doubt`: why what is acknowledged might be lost all the same; "" where nothing
    speaks for it."""

    name: str
    doubt: str = ""


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that a turn had: `kind` is SKILL_SELECT or SKILL_LOAD, `skill` its id, `at` unix seconds."""

    kind: str
    skill: str
    agent: str
    at: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What upstream `upstream` taught us about `model`: its window (until `expires_at`) and our counting ratios."""

    upstream: str
    model: str
    limits: Limits | None = None
    expires_at: float = 0.0
    estimate: Ratio = Ratio()
    exact: Ratio = Ratio()


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant` None means all (the operator's view). `by`: the columns that sums go by (`reports.BY`), separated by
    commas, or None for single rows; those lie `before` (opened_at, id). The others are values that rows must have."""

    tenant: str | None = None
    since: float | None = None
    until: float | None = None
    by: str | None = None
    limit: int = 1000
    key: str | None = None
    model: str | None = None
    end_user: str | None = None
    conversation: str | None = None
    purpose: str | None = None
    status: str | None = None
    before: tuple[float, str] | None = None
    newest: bool = False
    """Sums in the order of their latest calls, not of their cost."""


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a usage report; `key` is the value of the grouping column, `group` are those of several, in
    their order. `cost` in nano-dollars; `first` and `last` are when the first and the last call began.

    `tenant` is given where the line is one tenant's by nature (by conversation, by key): ids of two may be equal.
    `estimated` counts the calls whose tokens are our estimate because the provider reported none.
    """

    key: str
    tenant: str | None = None
    calls: int
    input: int
    output: int
    cached: int
    reasoning: int
    cost: int
    unpriced: int
    failed: int
    compactions: int
    recovered: int
    estimated: int = 0
    group: tuple[str, ...] = ()
    first: float = 0.0
    last: float = 0.0


class Store(Protocol):
    @property
    def shared(self) -> bool:
        """Whether other processes may write to the same database."""

    async def open(self, now: float) -> int:
        """Migrate and start. Rows left open by a dead process are closed as `unknown`; returns how many."""

    async def close(self) -> None:
        """Write everything that waits, then stop."""

    async def secret(self, purpose: str) -> bytes:
        """The 32-byte secret for `purpose`, made at the first migration; one per purpose, shared by all replicas."""

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory: ...

    def remember(self, tenant: str, what: Remember, now: float) -> Future[None]:
        """Queued when called, durable when awaited; giving up the wait does not take it back. All of it or nothing."""

    async def claim(self, tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        """Take the lease `key` for `seconds`, or take it over where it has expired."""

    async def release(self, tenant: str, key: bytes, owner: str) -> None: ...

    def open_row(self, row: UsageRow) -> None:
        """Queue an open row; it becomes durable within a moment (`opened` waits for it), unless it is closed before."""

    async def opened(self) -> None:
        """Wait until every row queued so far is durable (`usage.strict`)."""

    def close_row(self, row: UsageRow) -> Future[None]:
        """Close a row that `open_row` queued: once. Queued when called, durable when awaited; giving up
        the wait does not undo it."""

    async def calibrations(self) -> tuple[Calibration, ...]:
        """Everything learned so far; read at start. Not tied to a tenant: it describes upstreams."""

    async def calibrate(self, what: Calibration) -> None: ...

    async def keys(self) -> tuple[KeyRow, ...]: ...

    async def add_key(self, tenant: str, row: KeyRow) -> None: ...

    async def revoke_key(self, tenant: str, id: str, now: float) -> bool: ...

    async def revision(self) -> int:
        """Another number than before: another process has added or revoked a key."""

    async def standings(self) -> tuple[Standing, ...]:
        """Of all keys, those of the configuration too."""

    async def set_quota(self, tenant: str, key: str, quota: Quota) -> None:
        """Replace what was set for the key ("": for its tenant), whole."""

    async def mark_used(self, tenant: str, key: str, at: float) -> None: ...

    async def spent(self, since: float) -> Mapping[tuple[str, str], Amount]:
        """What each key (tenant, id) used in calls that began at `since` or later, as far as their rows are closed."""

    async def account(self, tenant: str, key: str, user: str | None) -> Account | None:
        """The settings of an end user of a key, of the key itself where `user` is None; None where none were made."""

    async def set_account(self, tenant: str, key: str, user: str | None, account: Account, now: float) -> None:
        """Replace them whole. Settings that change nothing leave no row. `purge` never takes them."""

    async def result(self, tenant: str, scope: bytes, reference: str) -> str | None:
        """The whole text behind a reference; None where it is missing or another caller's."""

    async def traces(self, tenant: str, scope: bytes, conversation: str) -> tuple[TraceRow, ...]:
        """The skills of a conversation, oldest first; () where it is unknown or another caller's."""

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow] | Sequence[UsageSum]: ...

    async def purge(self, tenant: str, before: float) -> int:
        """Delete conversations, compactions, hidden state and results last used before `before`, and usage rows
        opened before it. Returns how many rows went."""

    async def retire(self, before: float) -> int:
        """`purge` for every tenant of whom anything is kept, whether or not he still has a key."""

    async def engine(self) -> Engine: ...

    async def ready(self) -> None:
        """Raise StoreUnavailable if the database cannot be written now."""
