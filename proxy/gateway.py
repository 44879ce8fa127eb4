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
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from operator import add
from typing import Any, Final, Protocol, TypeVar, assert_never

import msgspec

from proxy.attempt import Attempt, Client, Target
from proxy.calibration import Calibrations
from proxy.core import chain, measure
from proxy.core.errors import (
    ClientLeft,
    Internal,
    InvalidReply,
    StoreUnavailable,
    TooLong,
    UpstreamError,
    WeirgateError,
    WindowExceeded,
)
from proxy.core.exchange import exchange
from proxy.core.policy import Mode, Policy
from proxy.core.steps import (
    Call,
    Caller,
    Claim,
    Count,
    Flow,
    Memory,
    Outcome,
    Recall,
    Remember,
    Reply,
    RunTools,
    Send,
    Snapshot,
    Step,
    Summarise,
)
from proxy.core.usage import Status, Usage, UsageRow
from proxy.core.usage import closed as settled_row
from proxy.dialects.chat.reply import is_error
from proxy.dialects.chat.request import encode_prompt
from proxy.leases import Leases
from proxy.metrics import Metrics
from proxy.naming import Names
from proxy.refusals import refusal
from proxy.retries import RetryBudget
from proxy.store import Store
from proxy.upstream import Request
from proxy.upstream.sighted import Sighted

T = TypeVar("T")
ReadUsage = Callable[[bytes], Usage | None]

_CALLERS: Final = 4096
"""Callers whose scope is kept; end users may be any number."""
_LONGEST_RETRY: Final = 10.0
"""A provider that asks for more patience than this is left to the client."""


class Counting(Protocol):
    """Exact token counts off the loop (`upstream.counter`)."""

    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]: ...


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model name leads by the configuration; `pattern` is its entry, the only name that metrics see."""

    target: Target
    policy: Policy
    pattern: str
    attempts: int = 2
    budget: float = 0.2


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
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.counter = counter
        self.metrics = metrics
        self.calibrations = calibrations
        self.secret = secret
        self.workers = workers
        self.store_required = store_required
        self.strict_usage = strict_usage
        self.sighted = Sighted()
        self.wall = wall
        self.clock = clock
        self.retries: dict[str, RetryBudget] = {}
        self.leases = Leases(store, wall, clock)
        self.names = Names()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._scopes: dict[Caller, bytes] = {}

    async def serve(
        self, call: Call, destination: Destination, client: Client, request_id: str, authorization: str | None
    ) -> Answer:
        """Serve one call to its end. Raises a WeirgateError, or ClientLeft."""
        snap = self.snapshot(call, destination)
        serving = _Serving(self, call, snap, destination, client, request_id, authorization)
        try:
            outcome = await serving.play(exchange(call, snap))
            await serving.settled()
        except BaseException as error:
            serving.leave()
            if isinstance(error, WindowExceeded | TooLong):
                self.metrics.overflows.labels("reached_client").inc()
            raise
        finally:
            serving.release()
        if outcome.recoveries:
            self.metrics.overflows.labels("recovered").inc()
        self.metrics.repairs.value += outcome.report.repaired
        return Answer(outcome=outcome, body=serving.body, rest=serving.rest)

    async def pass_on(self, request: Request, destination: Destination, row: UsageRow, read: ReadUsage) -> bytes:
        """One call without a conversation (embeddings): forwarded, and accounted for like any other."""
        target = destination.target
        lost = self.open_row(row)
        began = self.clock()
        status: Status = "failed"
        usage: Usage | None = None
        code: str | None = None
        http: int | None = None
        try:
            response = await target.upstream.send(request)
            http = response.status
            try:
                body = await response.read()
            finally:
                await response.close()
            if http != 200:
                raise refusal(http, body, own_key=target.own_key, retry_after=response.headers.get("retry-after"))
            if body[:64].lstrip()[:1] != b"{" or is_error(body):
                raise InvalidReply("The upstream answered with something else than a result.", upstream_status=http)
            status, usage = "ok", read(body)
        except WeirgateError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            closed = settled_row(
                row, status, usage or Usage(estimated=True), target.card.tariff, duration=self.clock() - began
            )
            closed = msgspec.structs.replace(closed, error=code, http_status=http)
            self.metrics.row(closed, destination.pattern)
            closing = self.spawn(self.store.close_row(closed))
        try:
            await closing
        except StoreUnavailable as error:
            lost = error
        if lost is not None:
            self.do_without(lost)
        return body

    def open_row(self, row: UsageRow) -> StoreUnavailable | None:
        """Queue an open row. Raises StoreUnavailable, or returns it where the store may be missing."""
        try:
            self.store.open_row(row)
        except StoreUnavailable as error:
            if self.store_required:
                raise
            return error
        return None

    def do_without(self, error: StoreUnavailable) -> None:
        """Count a call that the store had no part in, where that is allowed; else raise `error`."""
        if self.store_required:
            raise error
        self.metrics.unremembered.inc()

    def snapshot(self, call: Call, destination: Destination) -> Snapshot:
        """What this call may know of the world."""
        policy, card = destination.policy, destination.target.card
        upstream = destination.target.upstream.name
        estimate, exact = self.calibrations.ratios(upstream, card.name)
        caller = call.caller
        return Snapshot(
            policy=policy,
            card=card,
            limits=self.calibrations.limits(policy, card, upstream, self.wall()),
            ratio=estimate,
            exact_ratio=exact,
            upstream=upstream,
            model=card.name,
            agent=call.model,
            scope=self.scope_of(caller),
            fresh=self.names.fresh("conv_"),
            # Operator beats request: a request may only ask for less than the policy does.
            mode=call.mode if call.mode is not None and policy.mode is Mode.ENFORCE else policy.mode,
            scan=self.sighted.scan,
        )

    def scope_of(self, caller: Caller) -> bytes:
        """The root of this caller's identities; the same few callers ask again and again."""
        found = self._scopes.get(caller)
        if found is None:
            if len(self._scopes) >= _CALLERS:
                self._scopes.clear()
            found = chain.scope(self.secret, caller.tenant, caller.key, caller.end_user)
            self._scopes[caller] = found
        return found

    def spawn(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Work that outlives the request; `drain` waits for it. A failure that nobody awaits is the store's affair."""
        future = asyncio.ensure_future(work)  # noqa: TID251  its owner is this set
        self._tasks.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._tasks.discard(future)
        failure = None if future.cancelled() else future.exception()
        if failure is not None and not isinstance(failure, StoreUnavailable):
            future.get_loop().call_exception_handler({"message": f"a task failed: {type(failure).__name__}"})

    async def drain(self) -> None:
        """Wait for everything that outlives its request."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _Serving:
    """One call while it is served: the arms of the driver, and what must be settled before its end."""

    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        snap: Snapshot,
        destination: Destination,
        client: Client,
        request_id: str,
        authorization: str | None,
    ) -> None:
        self.gateway = gateway
        self.call = call
        self.snap = snap
        self.destination = destination
        self.client = client
        self.request_id = request_id
        self.authorization = authorization
        self.body = b""
        self.rest: tuple[bytes, ...] = ()
        self.said = False
        self._first_row: str | None = None
        self._repeated = False
        self._forgotten = False
        self._closing: list[asyncio.Future[None]] = []
        self._lease: bytes | None = None

    async def play(self, flow: Flow[Outcome]) -> Outcome:
        """Advance the flow until it returns or raises; whatever ends it early, the flow is closed.

        One that plans in a worker at that moment cannot be: it runs to its next step, and then nobody holds it.
        """
        try:
            return await self._play(flow)
        finally:
            if getgeneratorstate(flow) != GEN_RUNNING:
                flow.close()

    def do_without(self, error: StoreUnavailable) -> None:
        """Go on without the store, where that is allowed; each call is counted once."""
        if not self._forgotten:
            self.gateway.do_without(error)
            self._forgotten = True

    async def _play(self, flow: Flow[Outcome]) -> Outcome:
        done, step = _advance(flow, flow.send, None)
        while not done:
            try:
                answer = await self.perform(step)
            except (WeirgateError, ClientLeft) as error:
                done, step = _advance(flow, flow.throw, error)
            else:
                if isinstance(step, Claim | Count):
                    # What follows is planning: work in proportion to the history, kept off the loop.
                    loop = asyncio.get_running_loop()
                    advance = partial(_advance, flow, flow.send, answer)
                    done, step = await loop.run_in_executor(self.gateway.workers, advance)
                else:
                    done, step = _advance(flow, flow.send, answer)
        outcome: Outcome = step
        return outcome

    async def perform(self, step: Step) -> object:
        match step:
            case Recall():
                return await self.recall(step)
            case Count():
                texts = tuple(map(measure.countable, step.messages))
                counted = await self.gateway.counter.count(texts, step.encoding)
                return tuple(map(add, counted, map(measure.uncountable, step.messages)))
            case Claim():
                return await self.claim(step.key)
            case Send():
                return await self.send(step)
            case Remember():
                await self.remember(step)
                return None
            case Summarise() | RunTools():
                raise Internal("This release has no part that answers this step.")
            case _:
                assert_never(step)

    async def recall(self, step: Recall) -> Memory:
        try:
            return await self.gateway.store.recall(self.call.caller.tenant, step, self.gateway.wall())
        except StoreUnavailable as error:
            self.do_without(error)
            return Memory()

    async def claim(self, key: bytes) -> bool:
        ours, first = await self.gateway.leases.claim(self.call.caller.tenant, key)
        if ours:
            self._lease = key
        return first

    def release(self) -> None:
        """The planning is over, or the call. Safe to call twice."""
        key, self._lease = self._lease, None
        if key is not None:
            self.gateway.spawn(self.gateway.leases.release(self.call.caller.tenant, key))

    async def send(self, step: Send) -> Reply:
        gateway, target = self.gateway, self.destination.target
        self.release()
        if step.delay:
            await asyncio.sleep(step.delay)
        self.client.tell(step.prompt.report)
        request = Request(
            path="/chat/completions",
            body=encode_prompt(self.call, step.prompt, target.card.name),
            authorization=self.authorization,
            request_id=self.request_id,
        )
        row = self.row(step)
        lost = gateway.open_row(row)
        if lost is not None:
            self.do_without(lost)
        attempt = Attempt(
            call=self.call, prompt=step.prompt, target=target, row=row, client=self.client, clock=gateway.clock
        )
        try:
            reply = await attempt.run(request, self.opened)
        except UpstreamError as error:
            self.said = attempt.said
            error.again = self.may_repeat(error)
            raise
        finally:
            gateway.metrics.row(attempt.row, self.destination.pattern)
            self._closing.append(gateway.store.close_row(attempt.row))
        self.body, self.rest = attempt.body, attempt.rest
        if self.call.stream:
            gateway.spawn(attempt.release())
        return reply

    async def opened(self) -> None:
        """With `usage.strict`, until the open row is durable."""
        if not self.gateway.strict_usage:
            return
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
        return nothing_done and soon and self.retries.allow(self.destination.budget)

    @property
    def retries(self) -> RetryBudget:
        return self.gateway.retries.setdefault(self.destination.target.upstream.name, RetryBudget())

    def row(self, step: Send) -> UsageRow:
        """The open row of an attempt; a later one's parent is the first."""
        report, policy, caller = step.prompt.report, self.destination.policy, self.call.caller
        if step.purpose == "retry":
            self._repeated = True
        else:
            self.retries.call()
        row = UsageRow(
            id=self.gateway.names.fresh("use_"),
            request=self.request_id,
            parent=self._first_row,
            purpose=step.purpose,
            tenant=caller.tenant,
            key=caller.key,
            end_user=caller.end_user,
            conversation=report.conversation,
            upstream=self.destination.target.upstream.name,
            asked_model=self.call.model,
            model=self.destination.target.card.name,
            stream=self.call.stream,
            opened_at=self.gateway.wall(),
            projected=report.tokens or None,
            window=report.window,
            compaction=report.compaction,
            compaction_id=report.compaction_id,
            repaired=report.repaired,
            policy=policy.name,
            policy_hash=policy.hash,
            mode=str(self.snap.mode),
        )
        self._first_row = self._first_row or row.id
        return row

    async def remember(self, step: Remember) -> None:
        gateway, target = self.gateway, self.destination.target
        entry = gateway.calibrations.take(target.upstream.name, target.card.name, step, gateway.wall())
        if entry is not None:
            gateway.spawn(_quietly(gateway.store.calibrate(entry)))
        if step.request is None and step.compaction is None:
            return
        if step.compaction is not None:
            gateway.metrics.compactions.labels(step.compaction.trigger.lower()).inc()
        try:
            await gateway.store.remember(self.call.caller.tenant, step, gateway.wall())
        except StoreUnavailable as error:
            self.do_without(error)

    def leave(self) -> None:
        """Nobody waits for the rows any more; that they fail is the store's affair."""
        for closing in self._closing:
            self.gateway.spawn(closing)

    async def settled(self) -> None:
        """Until every row of this call is durable: what is acknowledged is kept."""
        for closing in self._closing:
            try:
                await closing
            except StoreUnavailable as error:
                self.do_without(error)


def _advance(flow: Flow[Outcome], resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """(False, the next step) or (True, the outcome): a StopIteration cannot cross a future."""
    try:
        return False, resume(value)
    except StopIteration as end:
        return True, end.value


async def _quietly(work: Awaitable[object]) -> None:
    """Housekeeping that nobody waits for: the store counts its own failures."""
    try:
        await work
    except StoreUnavailable:
        return
