"""The driver: performs the steps that the core asks for, one arm each, and nothing of its own.

Holds what the core must not: the clock, ids, the store, the upstreams. Rows are closed in tasks of their own, shielded
from the request that caused them, and are durable before the last byte of the answer leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from secrets import token_hex
from typing import Any, Final, Protocol, TypeVar, assert_never

import msgspec

from proxy.attempt import Attempt, Client, Target
from proxy.calibration import Calibrations
from proxy.core import chain
from proxy.core.errors import ClientLeft, Internal, StoreUnavailable, UpstreamError, WeirgateError
from proxy.core.exchange import exchange
from proxy.core.policy import Mode, Policy
from proxy.core.steps import (
    Call,
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
from proxy.dialects.chat.request import encode_prompt
from proxy.metrics import Metrics
from proxy.refusals import refusal
from proxy.store import Store
from proxy.upstream import Request

T = TypeVar("T")
ReadUsage = Callable[[bytes], Usage | None]

_LEASE: Final = 60.0
"""Seconds a lease on compacting a branch lives; a process that died gives way after that."""
_WAIT: Final = 30.0
"""Seconds a second request waits for the first one's compaction."""
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


class _Retries:
    """At most a share of the calls may be repeats, so that a failing provider is not flooded by us (Envoy's retry
    budget, with its minimum of three)."""

    def __init__(self) -> None:
        self.calls = 0.0
        self.repeats = 0.0

    def call(self) -> None:
        self.calls = self.calls * 0.999 + 1
        self.repeats *= 0.999

    def allow(self, share: float) -> bool:
        if self.repeats >= 3 + share * self.calls:
            return False
        self.repeats += 1
        return True


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
        self.wall = wall
        self.clock = clock
        self.owner = token_hex(8)
        self.retries: dict[str, _Retries] = {}
        self.leases: dict[bytes, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(
        self, call: Call, destination: Destination, client: Client, request_id: str, authorization: str | None
    ) -> Answer:
        """Serve one call to its end. Raises a WeirgateError, or ClientLeft."""
        serving = _Serving(self, call, destination, client, request_id, authorization)
        try:
            outcome = await serving.play(exchange(call, self.snapshot(call, destination)))
            await serving.settled()
        finally:
            serving.release()
        return Answer(outcome=outcome, body=serving.body, rest=serving.rest)

    async def pass_on(self, request: Request, destination: Destination, row: UsageRow, read: ReadUsage) -> bytes:
        """One call without a conversation (embeddings): forwarded, and accounted for like any other."""
        target = destination.target
        self.store.open_row(row)
        began = self.clock()
        status: Status = "failed"
        usage: Usage | None = None
        code: str | None = None
        http: int | None = None
        try:
            response = await target.upstream.send(request)
            try:
                body = await response.read()
            finally:
                await response.close()
            http = response.status
            if http != 200:
                raise refusal(http, body, own_key=target.own_key, retry_after=response.headers.get("retry-after"))
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
        await asyncio.shield(closing)
        return body

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
            scope=chain.scope(self.secret, caller.tenant, caller.key, caller.end_user),
            fresh="conv_" + token_hex(12),
            # Operator beats request: a request may only ask for less than the policy does.
            mode=call.mode if call.mode is not None and policy.mode is Mode.ENFORCE else policy.mode,
        )

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that outlives the request; `drain` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
        destination: Destination,
        client: Client,
        request_id: str,
        authorization: str | None,
    ) -> None:
        self.gateway = gateway
        self.call = call
        self.destination = destination
        self.client = client
        self.request_id = request_id
        self.authorization = authorization
        self.body = b""
        self.rest: tuple[bytes, ...] = ()
        self.said = False
        self._first_row: str | None = None
        self._closing: list[asyncio.Task[None]] = []
        self._lease: bytes | None = None

    async def play(self, flow: Flow[Outcome]) -> Outcome:
        """Advance the flow until it returns or raises; whatever ends it early, the flow is closed."""
        try:
            return await self._play(flow)
        finally:
            flow.close()

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
                texts = tuple(
                    item.text + "".join(call.name + call.arguments for call in item.calls) for item in step.messages
                )
                return await self.gateway.counter.count(texts, step.encoding)
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
        gateway = self.gateway
        try:
            return await gateway.store.recall(self.call.caller.tenant, step, gateway.wall())
        except StoreUnavailable:
            if gateway.store_required:
                raise
            gateway.metrics.unremembered.inc()
            return Memory()

    async def claim(self, key: bytes) -> bool:
        """Single-flight per branch: first among our own calls, then among replicas."""
        gateway = self.gateway
        key = self.call.caller.tenant.encode() + b"\0" + key
        if self._lease == key:
            return True
        running = gateway.leases.get(key)
        if running is not None:
            await asyncio.wait([running], timeout=_WAIT)
            return False
        gateway.leases[key] = asyncio.get_running_loop().create_future()
        self._lease = key
        try:
            return await gateway.store.claim(self.call.caller.tenant, key, gateway.owner, gateway.wall(), _LEASE)
        except StoreUnavailable:
            return True

    def release(self) -> None:
        """Let the next call of this branch go on. Safe to call twice."""
        key, self._lease = self._lease, None
        if key is None:
            return
        waiting = self.gateway.leases.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        self.gateway.spawn(_quietly(self.gateway.store.release(self.call.caller.tenant, key, self.gateway.owner)))

    async def send(self, step: Send) -> Reply:
        gateway, target = self.gateway, self.destination.target
        if step.delay:
            await asyncio.sleep(step.delay)
        report = step.prompt.report
        self.client.tell(report)
        row = self.row(step)
        gateway.retries.setdefault(target.upstream.name, _Retries()).call()
        try:
            gateway.store.open_row(row)
            if gateway.strict_usage:
                await gateway.store.opened()
        except StoreUnavailable:
            if gateway.store_required:
                raise
            gateway.metrics.unremembered.inc()
        attempt = Attempt(
            call=self.call, prompt=step.prompt, target=target, row=row, client=self.client, clock=gateway.clock
        )
        request = Request(
            path="/chat/completions",
            body=encode_prompt(self.call, step.prompt, target.card.name),
            authorization=self.authorization,
            request_id=self.request_id,
        )
        try:
            reply = await attempt.run(request)
        except UpstreamError as error:
            error.again = self.may_repeat(error)
            raise
        finally:
            self.said = attempt.said
            self._closing.append(gateway.spawn(self.close(attempt.row)))
        self.body, self.rest = attempt.body, attempt.rest
        return reply

    def may_repeat(self, error: UpstreamError) -> bool:
        if self.said or self.destination.attempts < 2 or (error.retry_after or 0) > _LONGEST_RETRY:
            return False
        nothing_done = not error.sent or error.upstream_status in (429, 503, 529)
        return nothing_done and self.gateway.retries[self.destination.target.upstream.name].allow(
            self.destination.budget
        )

    def row(self, step: Send) -> UsageRow:
        """The open row of an attempt; a later one's parent is the first."""
        report, policy, caller = step.prompt.report, self.destination.policy, self.call.caller
        row = UsageRow(
            id="use_" + token_hex(12),
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
            mode=str(policy.mode),
        )
        self._first_row = self._first_row or row.id
        return row

    async def close(self, row: UsageRow) -> None:
        self.gateway.metrics.row(row, self.destination.pattern)
        await self.gateway.store.close_row(row)

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
            await asyncio.shield(gateway.spawn(gateway.store.remember(self.call.caller.tenant, step, gateway.wall())))
        except StoreUnavailable:
            if gateway.store_required:
                raise
            gateway.metrics.unremembered.inc()
        finally:
            if step.compaction is not None:
                self.release()

    async def settled(self) -> None:
        """Until every row of this call is durable: what is acknowledged is kept."""
        try:
            for task in self._closing:
                await asyncio.shield(task)
        except StoreUnavailable:
            if self.gateway.store_required:
                raise
            self.gateway.metrics.unremembered.inc()


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
