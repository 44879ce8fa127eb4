"""One turn of a conversation that the gateway keeps: served to its end whoever leaves, and stored.

It is the client of the gateway that is still there when the real one has left. Belongs here: what is put under the head
and when, a turn that is stopped, signs of life. Never: whether it may begin, or who may speak into it (`conversing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import Message, Reasoning, Text, concluded
from proxy.core.done import DONE
from proxy.core.errors import ClientError, Conflict, Rejected, ShuttingDown, StoreUnavailable, WeirgateError
from proxy.core.steps import Call, Caller, Outcome, Reply, Report
from proxy.dialects.chat.messages import read_message, write_message
from proxy.dialects.chat.owned import whole_body
from proxy.gateway import Answer, Gateway
from proxy.showing import Client, Whole
from proxy.store import branches
from proxy.store.owned import Begun, Conversations, Item, Kept

HELD: Final = 30.0
"""Seconds for which a turn is ours without a sign of life."""
_RENEWED: Final = 2.0
"""Seconds between two signs of life; so late a turn on another replica may learn that it is to stop."""

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

    @property
    def place(self) -> tuple[str, str, str]:
        """Where the store has the conversation: tenant, key, id."""
        return self.call.caller.tenant, self.call.caller.key, self.id


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

    def write(self, data: bytes) -> Awaitable[None]:
        return DONE if self._client is None else self._client.write(data)


class Turn:
    """Begun on the path of `begun`, which ends with `said` messages of `asked`; `ended` is called when it is over."""

    def __init__(
        self,
        gateway: Gateway,
        kept: Conversations,
        asked: Asked,
        run: str,
        begun: Begun,
        said: int,
        listener: Listener,
        ended: Callable[[Turn], None],
    ) -> None:
        self._gateway = gateway
        self._kept = kept
        self.asked = asked
        self._run = run
        self._owned = begun.owned
        self._path = begun.path
        self._said = said
        before = begun.path[-1 - begun.new] if begun.new < len(begun.path) else None
        self._asks = before is not None and waits(before, asked.expires, self._gateway.wall())
        """Whether a question to the user was open when it began."""
        self._listener = listener
        self._ended = ended
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
            self._ended(self)
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

    def write(self, data: bytes) -> Awaitable[None]:
        return self._listener.write(data)

    async def interjected(self) -> tuple[Message, ...]:
        """What was spoken into this turn since it was last asked."""
        taken = await self._kept.interjected(*self.asked.place, self._run)
        self._taken += taken
        return tuple(read_message(item.wire, index) for index, item in enumerate(taken))

    # -- what is stored -----------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Signs of life, until the turn is over or is to stop."""
        while True:
            await asyncio.sleep(_RENEWED)
            until = self._gateway.wall() + HELD
            try:
                stop = await self._kept.renew(*self.asked.place, self._run, until)
            except StoreUnavailable:
                continue
            if stop is not False:  # asked for elsewhere, or the turn is not ours any more
                self.stop(stopped())
                return

    async def _finish(self, items: Sequence[Item], back: int = 0) -> None:
        """What was spoken into the turn stands before what came of it, whatever that is."""
        made, now = (*self._taken, *items), self._gateway.wall()
        await self._kept.finish(*self.asked.place, self._run, made, now, back=back)

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


def stopped() -> Conflict:
    """Its user stopped it."""
    return Conflict("The turn was stopped.", code="turn_cancelled", param="conversation")


def waits(last: Item, expires: float, now: float) -> bool:
    """Whether `last` still waits for its user at `now`: a question stands for `expires` seconds (0: for ever)."""
    return last.paused and (not expires or now - last.created_at <= expires)


def _only(said: Message, *kinds: type) -> Message:
    """`said` with its blocks of these kinds."""
    return message(said.role, tuple(block for block in said.blocks if type(block) in kinds), name=said.name)
