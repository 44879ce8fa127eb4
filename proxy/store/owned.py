"""The contract of conversations that the gateway keeps: their items, who may write, and where they stand.

A conversation is a tree of items, each under its parent, and a head: what is told is the path to the head. A rewind
moves the head; nothing is destroyed before the conversation is. One turn runs at a time, under a run that expires: what
`begin` stores is durable before anything is sent upstream, and only the run's owner moves the head. Heads move by
compare-and-set. Every verb takes tenant and key first: a conversation is one key's, and another's is a missing one.

Raises `StoreUnavailable` where the database cannot be read or written.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from proxy.store import Store

Kept = Literal["completed", "incomplete", "cancelled"]
"""How a message ended: whole, cut off by a failure, or stopped by its user."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shown message, as the chat dialect writes it (`wire`).

    `turn` counts from 1; of items that a verb is given it counts from the head's: 0 goes on with that turn, 1 begins
    the next. What follows `created_at` is known of answers only: `reasoning` is what the model thought, `final` says
    that its text is the turn's answer, `finish` how the provider ended it. `request` is the request it was made in;
    `tokens` and `window` are the prompt's, `compaction` is the id of the notes in it, `effort` the level that held;
    `paused` says that it asks something of the user, whose next message goes on with the turn.
    """

    id: str
    turn: int
    role: str
    wire: bytes
    created_at: float
    status: Kept = "completed"
    reasoning: str = ""
    final: bool = False
    finish: str = ""
    request: str = ""
    model: str = ""
    tokens: int | None = None
    window: int | None = None
    compaction: str | None = None
    effort: str | None = None
    paused: bool = False


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. `head` is the id of its newest item, `last` that item (None: empty); `version` grows whenever
    head or run change. `run` is the running turn's id, None where none runs or its owner is gone (`now` is past its
    end)."""

    id: str
    created_at: float
    last_used: float
    end_user: str | None = None
    metadata: Mapping[str, str] = {}
    head: str | None = None
    last: Item | None = None
    version: int = 0
    run: str | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that may run: the conversation as it is now, and the path to its head, oldest first; the new items are its
    last `new`."""

    owned: Owned
    path: tuple[Item, ...]
    new: int


class Conversations(Protocol):
    async def create(self, tenant: str, key: str, owned: Owned, items: Sequence[Item] = ()) -> Owned:
        """A new conversation that begins with `items`, each under the one before it."""

    async def find(self, tenant: str, key: str, id: str, now: float) -> Owned | None: ...

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
        """By time of creation. With `end_user` only that user's."""

    async def describe(self, tenant: str, key: str, id: str, metadata: Mapping[str, str], now: float) -> Owned | None:
        """Replace its metadata."""

    async def path(self, tenant: str, key: str, id: str) -> tuple[Item, ...]:
        """From its beginning to its head; () where it is empty or unknown."""

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
        """Put `items` under the head, move it, and take the run for `seconds`: all of it durable when this returns.

        None: there is no such conversation. The conversation as it is: a turn runs already. A conversation that has no
        item yet takes `end_user` for its own. Nothing is put twice: neither an item whose id is on the path already,
        nor items that equal the last ones (role and wire) where no answer stands behind those (the turn failed, or its
        process died, and the client asks again); `new` counts all of the last ones that nobody has answered.
        An item of whose id there is another on a branch that was left gets a new one.
        """

    async def extend(self, tenant: str, key: str, id: str, items: Sequence[Item], now: float) -> Owned | None:
        """Put `items` under the head while no turn runs; the conversation as it is, unchanged, where one does."""

    async def renew(self, tenant: str, key: str, id: str, run: str, until: float) -> bool | None:
        """Keep the run. None: it is not ours any more. True: its user wants it stopped."""

    async def interject(self, tenant: str, key: str, id: str, items: Sequence[Item], now: float) -> bool:
        """Leave `items` for the running turn, to be read before its next model call; those that are there already are
        not left twice. False: none runs (any more)."""

    async def interjected(self, tenant: str, key: str, id: str, run: str) -> tuple[Item, ...]:
        """Take what was left for this run, in order."""

    def finish(
        self, tenant: str, key: str, id: str, run: str, items: Sequence[Item], now: float, *, back: int = 0
    ) -> Future[None]:
        """Put `items` (interjected ones that were taken among them) under the head and end the run, if it is ours.
        Queued when called, durable when awaited. What was interjected and not taken follows as messages that nobody
        has answered yet; behind a question to the user it is dropped, for there it would be the answer. `back`: first
        the head goes that many items up its path (the request was refused)."""

    async def cancel(self, tenant: str, key: str, id: str, now: float) -> bool:
        """Ask the running turn to stop. False: none runs."""

    async def rewind(self, tenant: str, key: str, id: str, turns: int, now: float) -> Owned | Literal["busy"] | None:
        """Move the head to before the last `turns` turns (all of them: to the beginning)."""

    async def delete(self, tenant: str, key: str, id: str, now: float) -> bool | Literal["busy"]:
        """Delete it with its items, while no turn runs. False: there is none. What was compacted or stored of its texts
        goes by retention."""


class KeepingStore(Store, Protocol):
    """A store that can keep conversations, too."""

    @property
    def conversations(self) -> Conversations | None:
        """None where content must not be at rest."""
