"""Turns of conversations that the gateway keeps: begun, served to their end whoever leaves, and stored.

A call that brings only what is new becomes the call of a client who keeps the conversation himself: its messages are
those of the path with the new ones behind them, and it is served like any other. Belongs here: who may speak (one turn
at a time), what is put under the head and when, a turn that is stopped or spoken into. Never: what is told (`core`),
the form of a request (`dialects.chat.owned`), where a model is (`server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.command import given
from proxy.core.conversation import SYSTEM, Message, Reasoning, Text, concluded
from proxy.core.errors import (
    ClientError,
    Conflict,
    Malformed,
    NotFound,
    Rejected,
    ShuttingDown,
    StoreUnavailable,
    WeirgateError,
)
from proxy.core.slugs import selected
from proxy.core.steps import Call, Caller, Outcome, Reply, Report
from proxy.dialects.chat.messages import read_message, write_message
from proxy.dialects.chat.owned import Told, told_again, whole_body
from proxy.gateway import Answer, Gateway
from proxy.showing import Client, Whole
from proxy.store import branches
from proxy.store.owned import Begun, Conversations, Item, Kept, Owned

HELD: Final = 30.0
"""Seconds for which a turn is ours without a sign of life."""
_RENEWED: Final = 2.0
"""Seconds between two signs of life; so late a turn on another replica may learn that it is to stop."""
_LOOKED: Final = 0.25
"""Seconds between two looks at a turn that runs on another replica."""

Serve = Callable[[bytes, Caller, "Turn"], Awaitable[Answer]]
"""Serves a whole request for a caller; the turn is its client and hears what is shown."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call that names a conversation: `id`, whether it may go into a turn that runs, its own request's id, and the
    key under which it is the same call when it is sent again ("": none). `expires` is for how many seconds a question
    to the user stands (0: for ever)."""

    call: Call
    id: str
    interject: bool
    request: str
    once: str = ""
    expires: float = 0.0


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
            owned = await self._find(asked)
            items = items or await self._items(asked, owned)
            run = self.gateway.names.fresh("run_")
            begun = await self._begun(asked, run, items)
            if isinstance(begun, Begun):
                if asked.once and branches.answer(begun.path, items) is not None:
                    back = branches.again(begun.path, items)
                    await self.kept.finish(*self._key(asked), run, (), self.gateway.wall(), back=back)
                    if back:
                        continue
                    return self._said(asked, items, begun.path)
                turn = Turn(self, asked, run, begun, len(items), listener)
                self._running[self._key(asked)] = turn
                return turn
            if await self._joins(asked, items):
                await self._ended(asked)
                path = await self.kept.path(*self._key(asked))
                if branches.answer(path, items) is not None:
                    return self._said(asked, items, path)
                self._unheard(asked, items, path)

    async def _find(self, asked: Asked) -> Owned:
        caller = asked.call.caller
        owned = await self.kept.find(caller.tenant, caller.key, asked.id, self.gateway.wall())
        stranger = owned is not None and None not in (owned.end_user, caller.end_user)
        if owned is None or (stranger and owned.end_user != caller.end_user):
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
        if asked.once and any(item.id == items[-1].id for item in await self.kept.path(*self._key(asked))):
            return True
        if not asked.interject or given(asked.call.messages) is not None:
            raise Conflict("A turn of this conversation is running.", code="conversation_busy", param="conversation")
        if any(item.role == "user" and selected(item.text) for item in asked.call.messages):
            return True
        said = tuple(msgspec.structs.replace(item, turn=0) for item in items if item.role not in SYSTEM)
        return await self.kept.interject(*self._key(asked), said, self.gateway.wall())

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
            here = self._running.get(self._key(asked))
            if here is not None:
                await here.over.wait()
            owned = await self._find(asked)
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

    def ended(self, turn: Turn) -> None:
        """Called by a turn when it is over."""
        if self._running.get(self._key(turn.asked)) is turn:
            del self._running[self._key(turn.asked)]

    @staticmethod
    def _key(asked: Asked) -> tuple[str, str, str]:
        return asked.call.caller.tenant, asked.call.caller.key, asked.id


class Listener:
    """The client of a turn, who may leave it."""

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client

    def leave(self) -> None:
        """Nothing is written to him any more."""
        self._client = None

    @property
    def begun(self) -> bool:
        return self._client is not None and self._client.begun

    def tell(self, report: Report) -> None:
        if self._client is not None:
            self._client.tell(report)

    async def write(self, data: bytes) -> None:
        if self._client is not None:
            await self._client.write(data)


class Turn:
    """One turn while it is served: the client of the gateway, who is still there when the real one has left."""

    def __init__(
        self, conversing: Conversing, asked: Asked, run: str, begun: Begun, said: int, listener: Listener
    ) -> None:
        self._conversing = conversing
        self._gateway = conversing.gateway
        self.asked = asked
        self._run = run
        self._owned = begun.owned
        self._path = begun.path
        self._said = said
        before = begun.path[-1 - begun.new] if begun.new < len(begun.path) else None
        self._asks = before is not None and waits(before, asked.expires, self._gateway.wall())
        """Whether a question to the user was open when it began."""
        self._listener = listener
        self._showing: Whole | None = None
        self._work: asyncio.Task[Answer] | None = None
        self._stopped: WeirgateError | None = None
        """Why it is to stop."""
        self._report: Report | None = None
        self._taken: tuple[Item, ...] = ()
        self.over = asyncio.Event()

    @property
    def caller(self) -> Caller:
        """Who asks: the conversation's end user, whoever the request names."""
        return msgspec.structs.replace(self.asked.call.caller, end_user=self._owned.end_user)

    @property
    def body(self) -> bytes:
        """The request with the whole conversation in it."""
        stated, rest = branches.parted(self._path)
        return whole_body(self.asked.call.fields, (*stated, *rest))

    async def run(self, serve: Serve) -> Answer:
        """Serve the turn and store what came of it. Goes on when its client leaves; ends when it is stopped."""
        gateway = self._gateway
        self._work = asyncio.current_task()
        keeping = gateway.spawn(self._keep())
        try:
            if self._stopped is not None and self._work is not None:
                self._work.cancel()  # before it began
            answer = await serve(self.body, self.caller, self)
            await self._finish(self._items(answer.outcome))
            return answer
        except asyncio.CancelledError:
            await self._left("incomplete" if isinstance(self._stopped, ShuttingDown) else "cancelled")
            if self._stopped is None or self._work is None:
                raise
            self._work.uncancel()
            raise self._stopped from None
        except (ClientError, Rejected):
            # Kept, it would be refused with every later request, too. Who spoke into the turn asks again by himself.
            self._taken = ()
            if self._shown:  # what the turn began with was accepted before
                await self._left("incomplete")
            else:
                await self._finish((), back=self._said)
            raise
        except Exception:
            await self._left("incomplete")
            raise
        finally:
            keeping.cancel()
            self._conversing.ended(self)
            self.over.set()
            self._work = self._showing = None

    def stop(self, why: WeirgateError) -> None:
        """Nobody wants more of it, or there is no time for more."""
        if self._stopped is None:
            self._stopped = why
            if self._work is not None:
                self._work.cancel()

    def end(self) -> None:
        """The server must stop now."""
        self.stop(ShuttingDown("The gateway is shutting down; the turn was cut off.", retry_after=1.0))

    # -- the client's side --------------------------------------------------------------------------------------

    def shows(self, showing: Whole) -> None:
        """What is shown of the answer is read there."""
        self._showing = showing

    @property
    def begun(self) -> bool:
        return self._listener.begun

    def tell(self, report: Report) -> None:
        self._report = report
        self._listener.tell(report)

    async def write(self, data: bytes) -> None:
        await self._listener.write(data)

    async def interjected(self) -> tuple[Message, ...]:
        """What was spoken into this turn since it was last asked."""
        taken = await self._conversing.kept.interjected(*self._place, self._run)
        self._taken += taken
        return tuple(read_message(item.wire, index) for index, item in enumerate(taken))

    # -- what is stored -----------------------------------------------------------------------------------------

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.asked.call.caller.tenant, self.asked.call.caller.key, self.asked.id

    async def _keep(self) -> None:
        """Signs of life, until the turn is over or is to stop."""
        while True:
            await asyncio.sleep(_RENEWED)
            until = self._gateway.wall() + HELD
            try:
                stop = await self._conversing.kept.renew(*self._place, self._run, until)
            except StoreUnavailable:
                continue
            if stop is not False:  # asked for elsewhere, or the turn is not ours any more
                self.stop(stopped())
                return

    async def _finish(self, items: Sequence[Item], back: int = 0) -> None:
        """What was spoken into the turn stands before what came of it, whatever that is."""
        made, now = (*self._taken, *items), self._gateway.wall()
        await self._conversing.kept.finish(*self._place, self._run, made, now, back=back)

    @property
    def _shown(self) -> bool:
        """Whether something of the answer was."""
        return self._showing is not None and self._showing.spoken().message is not None

    async def _left(self, status: Kept) -> None:
        """Keep what was written of an answer that has no end. That it cannot be stored is told by the run's end."""
        items = self._item(self._showing.spoken(), status) if self._showing is not None else ()
        try:
            await self._finish(items)
        except StoreUnavailable:
            return

    def _items(self, outcome: Outcome) -> tuple[Item, ...]:
        """What the turn leaves behind the messages that it began with."""
        if outcome.reply is None or outcome.reply.message is None:
            return ()
        return self._item(outcome.reply, "completed", outcome)

    def _item(self, reply: Reply, status: Kept, outcome: Outcome | None = None) -> tuple[Item, ...]:
        said, report = reply.message, self._report
        if said is not None and outcome is None:
            said = _only(said, Text, Reasoning)  # a call that was cut off is nobody's to answer
        if said is None or said.empty:
            return ()
        command = outcome is not None and outcome.said is not None
        paused = outcome is not None and outcome.pause is not None
        ends = outcome is not None and not command and not paused
        over = concluded(said, reply.finish) if ends else said
        return (
            Item(
                id=self._gateway.names.fresh("msg_"),
                turn=0,
                role=said.role,
                wire=write_message(said if said.calls else _only(said, Text)),
                created_at=self._gateway.wall(),
                status=status,
                reasoning="".join(block.text for block in said.blocks if type(block) is Reasoning),
                final=over is not said,
                finish=reply.finish or "",
                request=self.asked.request,
                model=self.asked.call.model,
                tokens=report.tokens if report is not None else None,
                window=report.window if report is not None else None,
                compaction=report.compaction_id if report is not None else None,
                effort=outcome.effort if outcome is not None else None,
                paused=paused or (command and self._asks),  # a command answers no question
            ),
        )


def missing() -> NotFound:
    """Unknown, deleted, or another's."""
    return NotFound("The conversation does not exist here.", code="conversation_not_found", param="conversation")


def stopped() -> Conflict:
    """Its user stopped it."""
    return Conflict("The turn was stopped.", code="turn_cancelled", param="conversation")


def waits(last: Item, expires: float, now: float) -> bool:
    """Whether `last` still waits for its user at `now`: a question stands for `expires` seconds (0: for ever)."""
    return last.paused and (not expires or now - last.created_at <= expires)


def _only(said: Message, *kinds: type) -> Message:
    """`said` with its blocks of these kinds."""
    return message(said.role, tuple(block for block in said.blocks if type(block) in kinds), name=said.name)
