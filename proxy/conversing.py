"""Conversations that the gateway keeps: who may speak in one, and what begins there.

A call that brings only what is new becomes the call of a client who keeps the conversation himself: its messages are
those of the path with the new ones behind them, and it is served like any other. Belongs here: one turn at a time, what
it begins with, speaking into one that runs, the answer of one that is asked for again. Never: a turn while it is served
(`turn`), what is told (`core`), the form of a request (`dialects.chat.owned`), where a model is (`server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from proxy.core.command import given
from proxy.core.conversation import SYSTEM
from proxy.core.errors import ClientError, Conflict, Malformed, NotFound
from proxy.core.slugs import selected
from proxy.core.steps import Caller
from proxy.dialects.chat.messages import write_message
from proxy.dialects.chat.owned import Told, told_again
from proxy.gateway import Gateway
from proxy.store import branches
from proxy.store.owned import Begun, Conversations, Item, Owned
from proxy.turn import HELD, Asked, Listener, Turn, stopped, waits

_LOOKED: Final = 0.25
"""Seconds between two looks at a turn that runs on another replica."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a turn that another request began: the body, or the frames of a stream."""

    body: bytes
    rest: tuple[bytes, ...]


class Conversing:
    """One per process."""

    def __init__(self, gateway: Gateway, kept: Conversations | None) -> None:
        self.gateway = gateway
        self._kept = kept
        self._running: dict[tuple[str, str, str], Turn] = {}

    @property
    def kept(self) -> Conversations:
        """Where they are. Raises ClientError where this gateway keeps none."""
        if self._kept is None:
            raise ClientError(
                "This gateway keeps no conversations: content must not be at rest.",
                code="conversations_unavailable",
                param="conversation",
            )
        return self._kept

    async def begin(self, asked: Asked, listener: Listener) -> Turn | Said:
        """The turn that `asked` begins or goes on with; or, where it spoke into a turn that ran or is sent again, that
        turn's answer. Raises NotFound, Conflict (a turn runs, or did not come to its end), Malformed,
        StoreUnavailable."""
        items: tuple[Item, ...] | None = None
        while True:
            owned = await self.find(asked.call.caller, asked.id)
            items = items or await self._items(asked, owned)
            run = self.gateway.names.fresh("run_")
            begun = await self._begun(asked, run, items)
            if isinstance(begun, Begun):
                if asked.once and branches.answer(begun.path, items) is not None:
                    back = branches.again(begun.path, items)
                    await self.kept.finish(*asked.place, run, (), self.gateway.wall(), back=back)
                    if back:
                        continue
                    return self._said(asked, items, begun.path)
                turn = Turn(self.gateway, self.kept, asked, run, begun, len(items), listener, self._over)
                self._running[asked.place] = turn
                return turn
            if await self._joins(asked, items):
                await self._ended(asked)
                path = await self.kept.path(*asked.place)
                if branches.answer(path, items) is not None:
                    return self._said(asked, items, path)
                self._unheard(asked, items, path)

    async def find(self, caller: Caller, id: str) -> Owned:
        """The conversation, if it is the caller's: where both name an end user, it is the same. Raises NotFound."""
        owned = await self.kept.find(caller.tenant, caller.key, id, self.gateway.wall())
        if owned is None or (None not in (owned.end_user, caller.end_user) and owned.end_user != caller.end_user):
            raise missing()
        return owned

    async def _begun(self, asked: Asked, run: str, items: Sequence[Item]) -> Begun | Owned:
        caller = asked.call.caller
        begun = await self.kept.begin(
            caller.tenant,
            caller.key,
            asked.id,
            run,
            items,
            end_user=caller.end_user,
            now=self.gateway.wall(),
            seconds=HELD,
        )
        if begun is None:
            raise missing()
        return begun

    async def _items(self, asked: Asked, owned: Owned) -> tuple[Item, ...]:
        """The new messages of `call`; what it says of the system only where that is new. Raises Malformed where they
        are no user's."""
        call = asked.call
        if call.choices != 1:
            raise Malformed("A conversation goes on with one answer: n is 1.", code="out_of_range", param="n")
        if any(item.role == "assistant" for item in call.messages):
            raise Malformed(
                "Only new messages are sent to a conversation that the gateway keeps; it has its own answers.",
                code="invalid_messages",
                param="messages",
            )
        if all(item.role in SYSTEM for item in call.messages):
            raise Malformed("The messages hold nothing to answer.", code="invalid_messages", param="messages")
        now = self.gateway.wall()
        first = 0
        while call.messages[first].role in SYSTEM:
            first += 1
        if first:
            path = await self.kept.path(call.caller.tenant, call.caller.key, owned.id)
            said = [write_message(item) for item in call.messages[:first]]
            first = first if said == branches.parted(path)[0] else 0
        made = [
            Item(id=self._named(asked, index), turn=0, role=item.role, wire=write_message(item), created_at=now)
            for index, item in enumerate(call.messages[first:], first)
        ]
        last = owned.last
        if last is not None and not waits(last, asked.expires, now):
            last = msgspec.structs.replace(last, paused=False)
        return branches.numbered(last, made)

    def _named(self, asked: Asked, index: int) -> str:
        """The id of a new message: the same for the same call, where its client says so."""
        if not asked.once:
            return self.gateway.names.fresh("msg_")
        of = f"{asked.id} {index} {asked.once}".encode("utf-8", "surrogatepass")
        return f"msg_{blake2b(of, digest_size=16).hexdigest()}"

    # -- speaking into a turn that runs -------------------------------------------------------------------------

    async def _joins(self, asked: Asked, items: Sequence[Item]) -> bool:
        """Whether `asked` waits for the turn that runs: it is the call that began it, sent again; or it is spoken into
        it; or it may be, and selects skills, which is done before a turn opens. Raises Conflict where it may not."""
        if asked.once and any(item.id == items[-1].id for item in await self.kept.path(*asked.place)):
            return True
        if not asked.interject or given(asked.call.messages) is not None:
            raise Conflict("A turn of this conversation is running.", code="conversation_busy", param="conversation")
        if any(item.role == "user" and selected(item.text) for item in asked.call.messages):
            return True
        said = tuple(msgspec.structs.replace(item, turn=0) for item in items if item.role not in SYSTEM)
        return await self.kept.interject(*asked.place, said, self.gateway.wall())

    def _unheard(self, asked: Asked, items: Sequence[Item], path: Sequence[Item]) -> None:
        """A turn ended without reading `items`. Raises Conflict where it asks its user something: what he said before
        he was asked is no answer."""
        there = any(item.id == items[-1].id for item in path)
        if not there and path and waits(path[-1], asked.expires, self.gateway.wall()):
            raise Conflict(
                "The turn asks its user something. What was said before is no answer, and is not kept.",
                code="conversation_paused",
                param="conversation",
            )

    def _said(self, asked: Asked, items: Sequence[Item], path: Sequence[Item]) -> Said:
        """The answer that stands behind `items` on `path`, once more. Raises Conflict where it has no end."""
        answer = branches.answer(path, items)
        assert answer is not None
        if answer.status == "cancelled":
            raise stopped()
        if answer.status != "completed":
            raise Conflict(
                "The turn broke off; what was written of its answer is kept.",
                code="turn_incomplete",
                param="conversation",
            )
        told = Told(wire=answer.wire, finish=answer.finish, request=answer.request, model=asked.call.model)
        body, rest = told_again(
            told,
            self.gateway.names.fresh("chatcmpl-"),
            self.gateway.wall(),
            stream=asked.call.stream,
            usage=asked.call.include_usage,
        )
        return Said(body=body, rest=rest)

    async def _ended(self, asked: Asked) -> None:
        """Until no turn runs, here or elsewhere; a run whose owner is gone ends by itself."""
        while True:
            here = self._running.get(asked.place)
            if here is not None:
                await here.over.wait()
            owned = await self.find(asked.call.caller, asked.id)
            if owned.run is None:
                return
            await asyncio.sleep(_LOOKED)

    # -- what is done to a turn ---------------------------------------------------------------------------------

    async def cancel(self, caller: Caller, id: str) -> bool:
        """Stop the running turn, wherever it runs. False: none does."""
        here = self._running.get((caller.tenant, caller.key, id))
        if here is not None:
            here.stop(stopped())
            await here.over.wait()
            return True
        return await self.kept.cancel(caller.tenant, caller.key, id, self.gateway.wall())

    def _over(self, turn: Turn) -> None:
        if self._running.get(turn.asked.place) is turn:
            del self._running[turn.asked.place]


def missing() -> NotFound:
    """Unknown, deleted, or another's."""
    return NotFound("The conversation does not exist here.", code="conversation_not_found", param="conversation")
