"""The driver: performs the steps that the core asks for, one arm each, and nothing of its own.

Holds what the core must not: the clock, ids, the store, the upstreams. What is given to the store is the store's from
that moment: a request that ends early gives up the wait, not the row. Rows are durable before the last byte of the
answer leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from operator import add
from typing import Any, Final, Protocol, TypeVar, assert_never

import msgspec

from proxy.attempt import Attempt, Target, opening
from proxy.calibration import Calibrations
from proxy.core import measure
from proxy.core.conversation import Message
from proxy.core.errors import ClientLeft, StoreUnavailable, TimedOut, TooLong, UpstreamError, WeirgateError
from proxy.core.exchange import exchange
from proxy.core.redaction import redact
from proxy.core.steps import (
    Call,
    Claim,
    Count,
    Interjected,
    Memory,
    Outcome,
    Recall,
    Remember,
    Reply,
    Report,
    RunTools,
    Send,
    Snapshot,
    Step,
    Summarise,
)
from proxy.core.usage import Purpose, UsageRow
from proxy.dialects.chat.own import own_answer
from proxy.dialects.chat.request import encode_prompt
from proxy.layering import answered, references
from proxy.leases import Leases
from proxy.metering import Metering
from proxy.metrics import Metrics
from proxy.naming import Names
from proxy.playing import Play
from proxy.retries import Retries, RetryBudget
from proxy.showing import Client, Showing, Whole
from proxy.snapshots import Destination, Snapshots
from proxy.store import Store
from proxy.summarising import Asking, Patience, SummaryCall, summary_report
from proxy.tally import Tally
from proxy.upstream import Request

T = TypeVar("T")

_LONGEST_RETRY: Final = 10.0
"""A provider that asks for more patience than this is left to the client."""


class Counting(Protocol):
    """Exact token counts off the loop (`upstream.counter`)."""

    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]: ...


class Keeping(Protocol):
    """A turn of a conversation that the gateway keeps, as far as serving it goes."""

    def shows(self, showing: Whole) -> None:
        """What is shown of the answer can be read there, also when it has no end."""

    async def interjected(self) -> tuple[Message, ...]:
        """What its user said since the turn began, or since this was asked last."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A served call: the JSON body, or the end of the stream that is still to be written."""

    outcome: Outcome
    body: bytes
    rest: tuple[bytes, ...]


class Gateway:
    """Serves calls. One per process; what it is given is shared by all calls."""

    def __init__(
        self,
        *,
        store: Store,
        counter: Counting,
        metrics: Metrics,
        calibrations: Calibrations,
        secret: bytes,
        workers: Executor,
        store_required: bool = True,
        strict_usage: bool = False,
        redact: Callable[[str], str] = redact,
        patience: Patience = Patience(),  # noqa: B008  frozen
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.counter = counter
        self.metrics = metrics
        self.calibrations = calibrations
        self.workers = workers
        self.store_required = store_required
        self.strict_usage = strict_usage
        self.patience = patience
        self.wall = wall
        self.clock = clock
        self.retries = Retries()
        self.leases = Leases(store, wall, clock)
        self.metering = Metering(store, wall, clock)
        self.names = Names(wall)
        self.snapshots = Snapshots(calibrations, self.names, secret=secret, redact=redact, wall=wall)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def serve(
        self,
        call: Call,
        destination: Destination,
        client: Client,
        request_id: str,
        authorization: str | None,
        summariser: Destination | None = None,
        keeping: Keeping | None = None,
    ) -> Answer:
        """Serve one call to its end. `summariser` is where the policy's summary model is reached, if this caller may
        use it; `keeping` is the turn that it is of a conversation which we keep. Raises a WeirgateError, or
        ClientLeft."""
        snap = self.snapshots.of(call, destination, summariser)
        serving = _Serving(self, call, snap, destination, client, request_id, authorization, summariser)
        if keeping is not None:
            serving.keeping = keeping
            keeping.shows(serving.showing)
        try:
            outcome = await serving.playing.run()
            await serving.settled()
        except BaseException as error:
            serving.leave()
            serving.failed(error)
            raise
        finally:
            serving.release()
        serving.served(outcome)
        if outcome.said is not None:
            client.tell(outcome.report)
            body, rest = own_answer(call, outcome.said, self.names.fresh("chatcmpl-"), self.wall())
            return Answer(outcome=outcome, body=body, rest=rest)
        return serving.answer(outcome)

    @property
    def closing(self) -> Metering | Store:
        """Who takes a closed row: rows of keys with limits are counted on their way to the store."""
        return self.metering if self.metering.meters else self.store

    def open_row(self, row: UsageRow, target: Target) -> StoreUnavailable | None:
        """Queue the open row of a call to `target`; what the call has to `do_without`, if that fails. Raises
        CircuitOpen where no call may be made."""
        if target.health is not None and target.health.doubted:
            target.health.check()
        try:
            self.store.open_row(row)
        except StoreUnavailable as error:
            return error
        return None

    def do_without(self, error: StoreUnavailable) -> None:
        """Count a call that the store had no part in, where that is allowed; else raise `error`."""
        self.metrics.store_failures.inc()
        if self.store_required:
            raise error
        self.metrics.unremembered.inc()

    def spawn(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Work that outlives the request; `drain` waits for it. A failure that nobody awaits is the store's affair."""
        future = asyncio.ensure_future(work)  # noqa: TID251  its owner is this set
        self._tasks.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._tasks.discard(future)
        failure = None if future.cancelled() else future.exception()
        if failure is not None and not isinstance(failure, WeirgateError | ClientLeft):
            future.get_loop().call_exception_handler({"message": f"a task failed: {type(failure).__name__}"})

    async def drain(self) -> None:
        """Wait for everything that outlives its request."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _Serving(Tally):
    """One call while it is served: the arms of the driver, and what must be settled before its end."""

    __slots__ = (
        "_closing",
        "_first_row",
        "_forgotten",
        "_lease",
        "_repeated",
        "_summaries_end",
        "authorization",
        "call",
        "client",
        "destination",
        "gateway",
        "keeping",
        "playing",
        "request_id",
        "said",
        "showing",
        "snap",
        "summariser",
    )

    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        snap: Snapshot,
        destination: Destination,
        client: Client,
        request_id: str,
        authorization: str | None,
        summariser: Destination | None = None,
    ) -> None:
        self.gateway = gateway
        self.summariser = summariser
        self.call = call
        self.snap = snap
        self.destination = destination
        self.client = client
        self.request_id = request_id
        self.authorization = authorization
        self.showing: Whole | Showing = Whole(client)
        if call.stream:
            self.showing = Showing(client, destination.target.card.name, include_usage=call.include_usage)
        bound = gateway.metrics.of(destination.pattern, destination.target.upstream.name)
        Tally.__init__(self, bound, gateway.clock)
        self.keeping: Keeping | None = None
        self.said = False
        self._first_row: str | None = None
        self._repeated = False
        self._forgotten = False
        self._closing: list[asyncio.Future[None]] = []
        self._lease: bytes | None = None
        self._summaries_end: float | None = None
        self.playing = Play(exchange(call, snap), self.perform, gateway.spawn, gateway.workers, self.concluded)

    def answer(self, outcome: Outcome) -> Answer:
        """The body, or what is left of the stream."""
        showing = self.showing
        if isinstance(showing, Showing):
            return Answer(outcome=outcome, body=b"", rest=showing.end(outcome.pause))
        return Answer(outcome=outcome, body=showing.whole(outcome), rest=())

    def do_without(self, error: StoreUnavailable) -> None:
        """Go on without the store, where that is allowed; each call is counted once."""
        if not self._forgotten:
            self.gateway.do_without(error)
            self._forgotten = True

    def perform(self, step: Step) -> Awaitable[object]:
        """The arm of `step`, to be awaited: a coroutine between the two would be paid for at every pause."""
        # In the order in which they are frequent: a class pattern that does not fit costs a thousand instructions.
        match step:
            case Send():
                return self.send(step)
            case Recall():
                return self.recall(step)
            case Remember():
                return self.remember(step)
            case Count():
                return self.count_tokens(step)
            case Interjected():
                return self.interjected()
            case Claim():
                return self.claim(step)
            case Summarise():
                return self.summarise(step)
            case RunTools():
                return self.run_tools(step)
            case _:
                assert_never(step)

    async def count_tokens(self, step: Count) -> tuple[int, ...]:
        counted = await self.gateway.counter.count(tuple(map(measure.countable, step.messages)), step.encoding)
        return tuple(map(add, counted, map(measure.uncountable, step.messages)))

    async def interjected(self) -> tuple[Message, ...]:
        return await self.keeping.interjected() if self.keeping is not None else ()

    async def run_tools(self, step: RunTools) -> object:
        """The answers, with the texts that this caller has under the references that `step` names."""
        assert self.snap.stack is not None  # without a stack no tool of ours was offered
        gateway, found = self.gateway, dict[str, str | None]()
        for reference in references(step):
            try:
                text = await gateway.store.result(self.call.caller.tenant, self.snap.scope, reference)
            except StoreUnavailable as error:
                self.do_without(error)
                text = None
            found[reference] = text
            (gateway.metrics.missing if text is None else gateway.metrics.found).inc()
        return answered(step, self.snap.stack, found)

    async def recall(self, step: Recall) -> Memory:
        gateway = self.gateway
        asked = gateway.clock()
        try:
            memory = await gateway.store.recall(self.call.caller.tenant, step, gateway.wall())
        except StoreUnavailable as error:
            self.do_without(error)
            return Memory()
        finally:
            gateway.metrics.recall.observe(gateway.clock() - asked)
        if self.planning:
            self.recalled(memory.compactions)
        self.before, self.known = memory.anchor, memory.compactions
        return memory

    async def claim(self, step: Claim) -> bool:
        """Whether it was ours. Else notes may have been stored between our recall and the lease, here or elsewhere."""
        held = self._lease == step.key  # a call that folds may compact as well: it must not wait for itself
        ours, first = (True, True) if held else await self.gateway.leases.claim(self.call.caller.tenant, step.key)
        self._lease = step.key if ours else self._lease
        self.claimed(step, first)
        return held

    def release(self) -> None:
        """The planning is over, or the call. Safe to call twice; while work goes on the lease is held."""
        if self.playing.working:
            return
        if self.planning:
            self.planned()
        key, self._lease = self._lease, None
        if key is not None:
            self.gateway.spawn(self.gateway.leases.release(self.call.caller.tenant, key))

    def concluded(self) -> None:
        """The flow has ended behind a client that left."""
        self.release()
        self.leave()

    async def summarise(self, step: Summarise[Any]) -> Any:
        """The verdict on a summary model's answer. Its row is one of this call's, and its time is bounded."""
        if self.playing.alone:
            raise ClientLeft(said=False)
        gateway, loop = self.gateway, asyncio.get_running_loop()
        if self._summaries_end is None:
            self._summaries_end = loop.time() + gateway.patience.total
        if loop.time() >= self._summaries_end:
            raise TimedOut("No time is left for another summary.")
        other = None if step.summariser.own else self.summariser
        destination = other or self.destination
        asking = Asking(
            call=self.call,
            target=destination.target,
            served=self.destination.target,
            request_id=self.request_id,
            authorization=self.authorization,
            ends=self._summaries_end,
            patience=gateway.patience,
        )
        row = self.opening(destination, "compaction", summary_report(step), None)
        lost = gateway.open_row(row, destination.target)
        if lost is not None:
            self.do_without(lost)
        calling = SummaryCall(step, asking, row, gateway.clock)
        try:
            return await calling.run(self.opened if gateway.strict_usage else None)
        finally:
            gateway.metrics.row(calling.row, destination.pattern)
            self.summarised(calling.outcome)
            self._closing.append(gateway.closing.close_row(calling.row))

    async def send(self, step: Send) -> Reply:
        gateway, target = self.gateway, self.destination.target
        if self.playing.alone:
            raise ClientLeft(said=False)
        self.release()
        if step.delay:
            await asyncio.sleep(step.delay)
        self.client.tell(step.prompt.report)
        if isinstance(self.showing, Showing):
            await self.showing.begin(step.prompt, next_round=step.purpose == "tool_round")
        request = Request(
            path="/chat/completions",
            body=encode_prompt(self.call, step.prompt, target.card.name),
            authorization=self.authorization,
            request_id=self.request_id,
        )
        row = self.row(step)
        lost = gateway.open_row(row, target)
        if lost is not None:
            self.do_without(lost)
        attempt = Attempt(
            call=self.call, prompt=step.prompt, target=target, row=row, showing=self.showing, clock=gateway.clock
        )
        try:
            reply = await attempt.run(request, self.opened if gateway.strict_usage else None)
        except UpstreamError as error:
            self.said = attempt.said
            error.again = self.may_repeat(error)
            raise
        finally:
            self.answered(attempt.row, attempt.began, step.prompt, target.card.tariff)
            self._closing.append(gateway.closing.close_row(attempt.row))
        return reply

    async def opened(self) -> None:
        """Until the open row is durable; with `usage.strict` a call waits for that."""
        try:
            await self.gateway.store.opened()
        except StoreUnavailable as error:
            self.do_without(error)

    def may_repeat(self, error: UpstreamError) -> bool:
        """Whether an attempt may be made once more: nobody worked on it, nothing was said, the budget allows it."""
        if isinstance(error, TooLong) or self.said or self._repeated or self.destination.attempts < 2:
            return False
        nothing_done = not error.sent or error.upstream_status in (429, 503, 529)
        soon = (error.retry_after or 0) <= _LONGEST_RETRY
        return nothing_done and soon and self.repeated(self.retries.allow(self.destination.budget))

    @property
    def retries(self) -> RetryBudget:
        return self.gateway.retries.of(self.destination.target.upstream.name)

    def row(self, step: Send) -> UsageRow:
        """The open row of an attempt; a later one's parent is the first."""
        if step.purpose == "retry":
            self._repeated = True
        else:
            self.retries.call()
        row = self.opening(self.destination, step.purpose, step.prompt.report, self._first_row)
        self._first_row = self._first_row or row.id
        return row

    def opening(self, destination: Destination, purpose: Purpose, report: Report, parent: str | None) -> UsageRow:
        target, policy, mode = destination.target, destination.policy, self.snap.mode
        id, at = self.gateway.names.fresh("use_"), self.gateway.wall()
        return opening(self.call, target, policy, report, purpose, parent, self.request_id, mode, id, at)

    async def remember(self, step: Remember) -> None:
        gateway, target = self.gateway, self.destination.target
        entry = gateway.calibrations.take(target.upstream.name, target.card.name, step, gateway.wall())
        if entry is not None:
            gateway.spawn(gateway.store.calibrate(entry))  # the store counts its own failures
        if step.request is None and step.compaction is None and not step.results:
            return
        if step.anchor is not None and step.anchor.guard is not None:
            self.guarded(step.anchor.guard, self.destination.policy.failure_limit)
        try:
            await gateway.store.remember(self.call.caller.tenant, step, gateway.wall())
        except StoreUnavailable as error:
            if step.compaction is not None:
                self.compacted(step.compaction, durable=False)
            self.do_without(error)
            return
        if step.compaction is not None:
            self.compacted(step.compaction, durable=True)
        if step.results:
            gateway.snapshots.stored.add(step.results)

    def leave(self) -> None:
        """Nobody waits for the rows any more; that they fail is the store's affair."""
        for closing in self._closing:
            self.gateway.spawn(closing)

    async def settled(self) -> None:
        """Until every row of this call is durable: what is acknowledged is kept."""
        waiting = self.gateway.metrics.store_waiting
        waiting.value += 1.0
        try:
            for closing in self._closing:
                try:
                    await closing
                except StoreUnavailable as error:
                    self.do_without(error)
        finally:
            waiting.value -= 1.0
