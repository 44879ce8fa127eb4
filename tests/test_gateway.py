"""The driver: every step performed once, every row closed once, and nothing acknowledged that is not kept."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.attempt import Target
from proxy.calibration import Calibrations
from proxy.core.chain import message
from proxy.core.conversation import Message, Text
from proxy.core.errors import (
    Internal,
    InvalidReply,
    KeyRefused,
    Overloaded,
    RateLimited,
    StoreUnavailable,
    TimedOut,
    TooLong,
    Unreachable,
    WindowExceeded,
)
from proxy.core.policy import Mode, ModelCard, Policy, Tariff
from proxy.core.steps import Call, Caller, Limits, RunTools
from proxy.core.usage import UsageRow
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.dialects.embeddings import read_embeddings_usage
from proxy.gateway import Answer as Served
from proxy.gateway import Destination, Gateway, _Serving
from proxy.metrics import Metrics
from proxy.retries import RetryBudget
from proxy.upstream import Request
from tests import edges
from tests.edges import Counting, Provider, Reader, WatchedStore, events, failing, stream, streamed, whole
from tests.playbook import changed
from tests.replies import chat_chunks, usage

WORDS = "the quick brown fox goes on and on "
OVERFLOW = "This model's maximum context length is 1500 tokens, however you requested 9000 tokens."
USAGE = usage(100, 20)
ROW = UsageRow(
    id="use_e", request="r", tenant="t", key="k", upstream="main", asked_model="e", model="e", opened_at=1.0,
    purpose="embeddings",
)  # fmt: skip


def history(turns: int, size: int = 12) -> list[dict[str, Any]]:
    talk: list[dict[str, Any]] = []
    for turn in range(turns):
        talk.append({"role": "user", "content": f"Question {turn}: {WORDS * size}"})
        talk.append({"role": "assistant", "content": f"Answer {turn}: {WORDS * size}"})
    return [*talk, {"role": "user", "content": "And now?"}]


def chat(turns: int = 1, *, tenant: str = "t", headers: dict[str, str] | None = None, **more: Any) -> Call:
    body = json.dumps({"model": "asked", "messages": history(turns), **more}).encode()
    return decode_call(body, Caller(tenant=tenant, key="k"), read_message, headers or {})


class House:
    """A gateway with its edges."""

    def __init__(self, store: WatchedStore, workers: Executor, **gateway: Any) -> None:
        self.store = store
        self.metrics = Metrics()
        self.calibrations = Calibrations()
        self.reader = Reader()
        self.gateway = Gateway(
            store=store,
            counter=Counting(),
            metrics=self.metrics,
            calibrations=self.calibrations,
            secret=b"s" * 32,
            workers=workers,
            **gateway,
        )

    async def serve(self, call: Call, provider: Provider, **destination: Any) -> Served:
        async with asyncio.timeout(edges.BOUND):
            return await self.gateway.serve(call, to(provider, **destination), self.reader, "req_1", "Bearer key")

    async def rows(self) -> list[UsageRow]:
        async with asyncio.timeout(edges.BOUND):
            await self.gateway.drain()
        return await self.store.rows()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def to(provider: Provider, window: int | None = 4000, **more: Any) -> Destination:
    policy = more.pop("policy", None) or Policy(window=window, name="p", hash="h")
    card = ModelCard(name="real", tariff=Tariff(input=1, output=2))
    return Destination(target=Target(upstream=provider, card=card), policy=policy, pattern="*", **more)


@asynccontextmanager
async def housed(**gateway: Any) -> AsyncIterator[House]:
    """A house whose background work is awaited; what nobody retrieved is an error."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    store = WatchedStore()
    await store.open(1.0)
    with ThreadPoolExecutor(2) as workers:
        house = House(store, workers, **gateway)
        try:
            yield house
        finally:
            async with asyncio.timeout(edges.BOUND):
                await house.gateway.drain()
            await store.close()
    gc.collect()
    assert complaints == []
    assert house.gateway.leases == {}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with housed() as made:
        yield made


def closed_once(house: House) -> None:
    """Promise 2: what was opened was closed, once."""
    opened = [row.id for row in house.store.verbs("open_row")]
    assert sorted(opened) == sorted(row.id for row in house.store.verbs("close_row"))


# -- a call that goes well ---------------------------------------------------------------------------------------------


async def test_a_whole_answer_is_given_when_everything_is_stored(house: House) -> None:
    provider = Provider(whole("hello", usage=USAGE))
    served = await house.serve(chat(), provider)
    assert json.loads(served.body)["choices"][0]["message"]["content"] == "hello"
    assert (served.rest, house.reader.read) == ((), [])
    (row,) = await house.store.rows()  # at once: nothing is still under way
    assert (row.status, row.input, row.output, row.cost, row.request) == ("ok", 100, 20, 140, "req_1")
    assert (row.asked_model, row.model, row.upstream) == ("asked", "real", "main")
    assert (row.policy, row.policy_hash, row.mode, row.window) == ("p", "h", "enforce", 4000)
    assert row.conversation == served.outcome.report.conversation == house.reader.told[0].conversation
    (request,) = provider.requests
    assert (request.path, request.request_id, request.authorization) == ("/chat/completions", "req_1", "Bearer key")
    assert provider.bodies()[0]["model"] == "real"
    verbs = [verb for verb, _ in house.store.asked]
    assert verbs.index("open_row") < verbs.index("close_row")
    closed_once(house)
    assert house.count("weirgate_upstream_calls_total", upstream="main", purpose="chat", status="ok") == 1


async def test_a_streams_end_is_withheld_until_everything_is_stored(house: House) -> None:
    stored: list[str] = []

    async def close(row: UsageRow) -> None:
        stored.append("row")
        assert house.reader.read
        await WatchedStore.close_row(house.store, row)

    house.store.close_row = close  # type: ignore[method-assign]
    served = await house.serve(chat(stream=True), Provider(streamed("hello there", usage=USAGE)))
    said = b"".join(house.reader.read)
    assert b"hello" in said
    assert b'"stop"' not in said
    assert b"[DONE]" not in said
    assert b"".join(served.rest) == events(chat_chunks("hello there")[-1], b"[DONE]")
    assert stored == ["row"]
    assert [row.status for row in await house.rows()] == ["ok"]
    assert len(house.store.verbs("remember")) == 1


async def test_the_next_call_of_a_conversation_is_known_by_what_it_says(house: House) -> None:
    first = await house.serve(chat(1), Provider(whole("x", usage=USAGE)))
    longer = json.loads(chat(1).body)["messages"] + [
        {"role": "assistant", "content": "x "},
        {"role": "user", "content": "More."},
    ]
    second = await house.serve(chat(messages=longer), Provider(whole("y")))
    assert second.outcome.report.conversation == first.outcome.report.conversation
    other = await house.serve(chat(messages=longer, tenant="u"), Provider(whole("y")))
    assert other.outcome.report.conversation != first.outcome.report.conversation


async def test_what_the_calls_teach_is_kept_in_the_store(house: House) -> None:
    await house.serve(chat(), Provider(whole("x", usage=usage(500, 1))))
    await house.rows()
    (entry,) = await house.store.calibrations()
    assert (entry.upstream, entry.model, entry.estimate.samples) == ("main", "real", 1)
    assert house.calibrations.of("main", "real") == entry


async def test_repairs_are_counted(house: House) -> None:
    broken = [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "gone", "content": "b"}]
    await house.serve(chat(messages=broken), Provider(whole()))
    assert house.count("weirgate_repaired_messages_total") == 1


# -- compaction --------------------------------------------------------------------------------------------------------


async def test_a_history_over_the_trigger_is_compacted_and_the_notes_are_stored(house: House) -> None:
    provider = Provider(whole("x", usage=USAGE))
    served = await house.serve(chat(60), provider)
    assert served.outcome.report.compaction == "auto"
    assert len(provider.bodies()[0]["messages"]) < 60
    assert house.count("weirgate_compactions_total", trigger="auto") == 1
    again = await house.serve(chat(60), provider)
    assert again.outcome.report.compaction_id == served.outcome.report.compaction_id
    assert provider.bodies()[0]["messages"] == provider.bodies()[1]["messages"]
    assert house.count("weirgate_compactions_total", trigger="auto") == 1
    assert len(house.store.verbs("claim")) == len(house.store.verbs("release")) == 1


async def test_two_calls_on_one_branch_make_one_compaction(house: House) -> None:
    gate, waiting = asyncio.Event(), asyncio.Event()
    remember = house.store.remember

    async def slowly(tenant: str, what: Any, now: float) -> None:
        if what.compaction is not None:
            waiting.set()
            await gate.wait()
        await remember(tenant, what, now)

    house.store.remember = slowly  # type: ignore[method-assign]
    provider = Provider(lambda request: whole("x", usage=USAGE))
    first = asyncio.create_task(house.serve(chat(60), provider))
    async with asyncio.timeout(edges.BOUND):
        await waiting.wait()
    second = asyncio.create_task(house.serve(chat(60), provider))
    recalls = len(house.store.verbs("recall"))
    while len(house.store.verbs("recall")) < recalls + 1:
        await asyncio.sleep(0)
    other = await house.serve(chat(61, tenant="u"), Provider(whole("x")))  # another tenant does not wait
    assert other.outcome.report.compaction == "auto"
    assert not first.done()
    assert not second.done()
    gate.set()
    served = [await first, await second]
    assert len({each.outcome.report.compaction_id for each in served}) == 1
    assert len([what for what in house.store.verbs("remember") if what.compaction is not None]) == 2  # one per tenant
    assert provider.bodies()[0]["messages"] == provider.bodies()[1]["messages"]


async def test_whoever_waits_for_a_compaction_does_not_wait_for_the_answer(house: House) -> None:
    """Where nothing can be gained, too: the lease ends with the planning."""
    hopeless = [{"role": "system", "content": WORDS * 800}, {"role": "user", "content": "Well?"}]
    gate, called = asyncio.Event(), asyncio.Event()

    async def first_hangs(request: Request) -> edges.Answer:
        if not called.is_set():
            called.set()
            await gate.wait()
        return whole("x")

    provider = Provider(first_hangs)
    first = asyncio.create_task(house.serve(chat(messages=hopeless), provider))
    async with asyncio.timeout(edges.BOUND):
        await called.wait()
    assert house.gateway.leases == {}
    served = await house.serve(chat(messages=hopeless), provider)
    assert served.outcome.report.compaction == "none"
    assert not first.done()
    gate.set()
    await first


async def test_a_lease_that_another_process_holds_is_respected(house: House) -> None:
    async def taken(*_: Any) -> bool:
        return False

    house.store.claim = taken  # type: ignore[method-assign]
    await house.serve(chat(60), Provider(whole("x")))
    assert len(house.store.verbs("recall")) == 2


async def test_a_call_that_is_cancelled_while_it_plans_leaves_quietly(house: House) -> None:
    busy, begun = threading.Event(), threading.Event()

    class Held(ThreadPoolExecutor):
        def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
            def held() -> Any:
                begun.set()
                assert busy.wait(edges.BOUND)
                return work(*args, **named)

            # The flow runs in the thread while its caller is cancelled.
            return super().submit(work if self._work_queue is None else held)

    with Held(1) as workers:
        house.gateway.workers = workers
        provider = Provider(whole("x"))
        task = asyncio.create_task(house.serve(chat(60), provider))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, edges.BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.set()
    assert provider.requests == []
    assert await house.rows() == []
    assert len(house.store.verbs("release")) == 1


async def test_a_flow_that_runs_in_a_worker_is_not_closed_under_it() -> None:
    """The generator itself, cancelled in the middle of its planning."""
    async with housed() as house:
        busy, begun = threading.Event(), threading.Event()

        class Slow(Counting):
            async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]:
                class Waits(tuple):  # type: ignore[type-arg]
                    def __iter__(self) -> Any:
                        if threading.current_thread() is not threading.main_thread():
                            begun.set()
                            assert busy.wait(edges.BOUND)
                        return super().__iter__()

                return Waits(await super().count(texts, encoding))

        serving = _Serving(
            house.gateway,
            chat(),
            house.gateway.snapshot(chat(), to(Provider(whole()))),
            to(Provider(whole())),
            house.reader,
            "req_1",
            None,
        )

        def flow() -> Any:
            yield chat_claim()
            begun.set()
            assert busy.wait(edges.BOUND)

        task = asyncio.create_task(serving.play(flow()))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, edges.BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.set()
        serving.release()


def chat_claim() -> Any:
    from proxy.core.steps import Claim

    return Claim(key=b"k")


# -- overflow ----------------------------------------------------------------------------------------------------------


async def test_an_overflow_is_cured_and_each_call_has_its_row(house: House) -> None:
    provider = Provider(failing(400, OVERFLOW), whole("x", usage=USAGE))
    served = await house.serve(chat(30), provider, window=100_000)
    assert served.outcome.recoveries == 1
    first, second = await house.rows()
    assert (first.status, first.purpose, first.error, first.parent) == ("failed", "chat", "context_length_exceeded", None)
    assert (second.status, second.purpose, second.parent, second.compaction) == ("ok", "recovery", first.id, "recovered")
    assert len(provider.requests[1].body) < len(provider.requests[0].body)
    assert house.count("weirgate_overflows_total", outcome="recovered") == 1
    assert house.count("weirgate_overflows_total", outcome="reached_client") == 0
    (entry,) = await house.store.calibrations()
    assert entry.limits == Limits(total=1500, source="learned")
    closed_once(house)


async def test_an_overflow_that_cannot_be_cured_reaches_the_client_and_every_row_is_closed(house: House) -> None:
    with pytest.raises(WindowExceeded):
        await house.serve(chat(30), Provider(failing(400, OVERFLOW)), window=100_000)
    rows = await house.rows()
    assert 1 < len(rows) <= 4
    assert {row.status for row in rows} == {"failed"}
    assert house.count("weirgate_overflows_total", outcome="reached_client") == 1
    closed_once(house)


async def test_in_mode_off_an_overflow_is_passed_on_and_counted(house: House) -> None:
    with pytest.raises(TooLong):
        await house.serve(chat(), Provider(failing(400, OVERFLOW)), policy=Policy(mode=Mode.OFF))
    assert house.store.verbs("recall", "remember", "claim") == []
    assert [row.mode for row in await house.rows()] == ["off"]
    assert house.count("weirgate_overflows_total", outcome="reached_client") == 1


async def test_an_overflow_in_the_middle_of_a_stream_is_not_recovered(house: House) -> None:
    role, text, *_ = chat_chunks("hello")
    broken = stream(events(role, text), events({"error": {"message": OVERFLOW}}))
    with pytest.raises(WindowExceeded):
        await house.serve(chat(stream=True), Provider(broken))
    assert [row.status for row in await house.rows()] == ["partial"]


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [failing(503), failing(429, headers={"retry-after": "0"}), failing(529), Unreachable("refused", sent=False)],
)
async def test_what_nobody_worked_on_is_repeated_once_with_a_row_of_its_own(house: House, fault: Any) -> None:
    served = await house.serve(chat(stream=True), Provider(fault, streamed("x")))
    assert served.rest
    first, second = await house.rows()
    assert (first.status, first.purpose) == ("failed", "chat")
    assert (second.status, second.purpose, second.parent) == ("ok", "retry", first.id)
    closed_once(house)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TimedOut("idle"), TimedOut),
        (Unreachable("reset", sent=True), Unreachable),
        (failing(500), Exception),
        (failing(401), KeyRefused),
        (failing(429, headers={"retry-after": "60"}), RateLimited),
        (stream(events({"error": {"message": "x"}})), InvalidReply),
    ],
)
async def test_what_may_have_been_billed_or_wants_much_patience_is_not_repeated(
    house: House, fault: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await house.serve(chat(stream=True), Provider(fault, streamed("x")))
    assert len(await house.rows()) == 1


async def test_nothing_is_repeated_after_the_client_has_read_something(house: House) -> None:
    role, text, *_ = chat_chunks("hello")
    broken = stream(events(role, text), events({"error": {"message": "x", "code": 503}}))
    with pytest.raises(InvalidReply):
        await house.serve(chat(stream=True), Provider(broken, streamed("x")))
    assert [row.status for row in await house.rows()] == ["partial"]


async def test_a_second_failure_is_the_clients(house: House) -> None:
    with pytest.raises(Overloaded):
        await house.serve(chat(), Provider(failing(503)))
    assert len(await house.rows()) == 2


async def test_one_attempt_means_one(house: House) -> None:
    with pytest.raises(Overloaded):
        await house.serve(chat(), Provider(failing(503)), attempts=1)
    assert len(await house.rows()) == 1


async def test_a_failing_provider_is_not_flooded(house: House) -> None:
    provider = Provider(failing(503, headers={"retry-after": "0"}))
    for _ in range(40):
        with pytest.raises(Overloaded):
            await house.serve(chat(), provider, budget=0.2)
    assert 40 < len(provider.requests) <= 40 + 3 + 0.2 * 40 + 1


def test_the_retry_budget_is_a_share_of_the_calls() -> None:
    budget = RetryBudget()
    assert [budget.allow(0.0) for _ in range(5)] == [True, True, True, False, False]
    for _ in range(100):
        budget.call()
    allowed = sum(budget.allow(0.2) for _ in range(100))
    assert 15 <= allowed <= 24


# -- the store is away -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["recall", "open_row"])
async def test_without_a_store_no_call_is_made(house: House, verb: str) -> None:
    house.store.down = {verb}
    provider = Provider(whole())
    with pytest.raises(StoreUnavailable):
        await house.serve(chat(), provider)
    assert provider.requests == []


async def test_with_strict_usage_a_row_that_is_not_durable_prevents_the_call_and_is_closed() -> None:
    async with housed(strict_usage=True) as house:
        house.store.down = {"opened"}
        provider = Provider(whole())
        with pytest.raises(StoreUnavailable):
            await house.serve(chat(), provider)
        assert provider.requests == []
        assert [(row.status, row.input) for row in await house.rows()] == [("failed", 0)]
        closed_once(house)


async def test_with_strict_usage_the_row_is_in_the_database_before_the_call() -> None:
    async with housed(strict_usage=True) as house:
        seen: list[str] = []

        async def look(request: Request) -> edges.Answer:
            seen.extend(row.status for row in await house.store.rows())
            return whole()

        await house.serve(chat(), Provider(look))
        assert seen == ["open"]
        assert [row.status for row in await house.rows()] == ["ok"]


@pytest.mark.parametrize("verb", ["close_row", "remember"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_what_could_not_be_stored_is_not_acknowledged(house: House, verb: str, streaming: bool) -> None:
    house.store.down = {verb}
    provider = Provider(streamed("hello") if streaming else whole("hello"))
    with pytest.raises(StoreUnavailable):
        await house.serve(chat(stream=streaming), provider)
    assert b"[DONE]" not in b"".join(house.reader.read)


@pytest.mark.parametrize(
    "down",
    [
        {"recall"},
        {"open_row", "close_row"},
        {"opened"},
        {"close_row"},
        {"remember"},
        {"claim", "release"},
        {"recall", "remember", "claim", "release", "open_row", "opened", "close_row"},
    ],
)
async def test_where_the_store_may_be_missing_calls_go_through_and_are_counted_once(down: set[str]) -> None:
    async with housed(store_required=False, strict_usage=True) as house:
        house.store.down = down
        served = await house.serve(chat(60), Provider(whole("hello")))
        assert b"hello" in served.body
        assert house.count("weirgate_unremembered_calls_total") == (0 if down == {"claim", "release"} else 1)


async def test_a_failed_call_whose_row_cannot_be_closed_complains_to_nobody(house: House) -> None:
    house.store.down = {"close_row"}
    with pytest.raises(KeyRefused):
        await house.serve(chat(), Provider(failing(401)))


# -- the client leaves -------------------------------------------------------------------------------------------------


async def test_a_call_that_is_cancelled_is_closed_and_its_row_says_so(house: House) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    role, text, *_ = chat_chunks("hello")
    answer = stream(events(role, text), hang)
    task = asyncio.create_task(house.serve(chat(stream=True), Provider(answer)))
    async with asyncio.timeout(edges.BOUND):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.closed == 1
    assert [row.status for row in await house.rows()] == ["cancelled"]
    assert house.store.verbs("remember") == []
    closed_once(house)


async def test_a_row_is_closed_even_when_the_call_is_cancelled_while_it_closes(house: House) -> None:
    gate, closing = asyncio.Event(), asyncio.Event()
    close = house.store.close_row

    async def slowly(row: UsageRow) -> None:
        closing.set()
        await gate.wait()
        await close(row)

    house.store.close_row = slowly  # type: ignore[method-assign]
    task = asyncio.create_task(house.serve(chat(), Provider(whole("x"))))
    async with asyncio.timeout(edges.BOUND):
        await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert [row.status for row in await house.rows()] == ["ok"]


async def test_a_connection_is_given_back_after_the_end_mark_by_nobody_who_waits(house: House) -> None:
    gate = asyncio.Event()
    answer = stream(events(*chat_chunks("hello"), b"[DONE]"), gate)
    await house.serve(chat(stream=True), Provider(answer))
    assert answer.closed == 0
    gate.set()
    await house.rows()
    assert (answer.closed, answer.read_whole) == (1, True)


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "asked", "mode"),
    [
        (Mode.ENFORCE, None, Mode.ENFORCE),
        (Mode.ENFORCE, "observe", Mode.OBSERVE),
        (Mode.ENFORCE, "off", Mode.OFF),
        (Mode.OBSERVE, "enforce", Mode.OBSERVE),
        (Mode.OFF, "enforce", Mode.OFF),
    ],
)
async def test_a_request_may_ask_for_less_than_the_operator_and_its_row_says_so(
    house: House, operator: Mode, asked: str | None, mode: Mode
) -> None:
    headers = {} if asked is None else {"x-weirgate-mode": asked}
    call = chat(headers=headers)
    policy = Policy(mode=operator, window=4000)
    assert house.gateway.snapshot(call, to(Provider(whole()), policy=policy)).mode is mode
    await house.serve(call, Provider(whole()), policy=policy)
    assert [row.mode for row in await house.rows()] == [str(mode)]


async def test_observe_sends_the_clients_messages_whatever_their_size(house: House) -> None:
    provider = Provider(whole("x"))
    call = chat(60)
    served = await house.serve(call, provider, policy=Policy(mode=Mode.OBSERVE, window=4000))
    assert provider.bodies()[0]["messages"] == json.loads(call.body)["messages"]
    assert served.outcome.report.compaction == "auto"


async def test_callers_have_scopes_of_their_own(house: House) -> None:
    scopes = {
        house.gateway.snapshot(call, to(Provider(whole()))).scope
        for call in (chat(), chat(tenant="u"), chat(user="a"), chat(user="b"), chat(tenant="u", user="a"))
    }
    assert len(scopes) == 5


async def test_a_step_that_this_release_has_no_part_for_is_refused(house: House) -> None:
    destination = to(Provider(whole()))
    serving = _Serving(
        house.gateway, chat(), house.gateway.snapshot(chat(), destination), destination, house.reader, "r", None
    )
    calls: Message = message("assistant", (Text(text="x"),))
    with pytest.raises(Internal):
        await serving.perform(RunTools(calls=calls))


# -- calls without a conversation --------------------------------------------------------------------------------------

EMBEDDINGS = Request(path="/embeddings", body=b"{}")
EMBEDDED = b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}'


async def pass_on(house: House, *answers: Any) -> bytes:
    async with asyncio.timeout(edges.BOUND):
        return await house.gateway.pass_on(EMBEDDINGS, to(Provider(*answers)), ROW, read_embeddings_usage)


async def test_embeddings_are_passed_on_and_accounted_for(house: House) -> None:
    answer = edges.Answer(EMBEDDED)
    assert await pass_on(house, answer) == EMBEDDED
    (row,) = await house.store.rows()
    assert (row.status, row.input, row.cost, row.estimated, row.http_status) == ("ok", 7, 7, False, 200)
    assert answer.closed == 1
    assert house.count("weirgate_upstream_calls_total", upstream="main", purpose="embeddings", status="ok") == 1


@pytest.mark.parametrize(
    ("answer", "kind", "code", "http"),
    [
        (failing(401), KeyRefused, "upstream_auth_failed", 401),
        (edges.Answer(b"<html>"), InvalidReply, "upstream_invalid_response", 200),
        (failing(200), InvalidReply, "upstream_invalid_response", 200),
        (edges.Answer(b"{", InvalidReply("reset")), InvalidReply, "upstream_invalid_response", 200),
        (Unreachable("refused", sent=False), Unreachable, "upstream_unreachable", None),
        (ZeroDivisionError(), ZeroDivisionError, None, None),
    ],
)
async def test_embeddings_that_fail_leave_a_row_that_says_why(
    house: House, answer: Any, kind: type[Exception], code: str | None, http: int | None
) -> None:
    with pytest.raises(kind):
        await pass_on(house, answer)
    (row,) = await house.rows()
    assert (row.status, row.error, row.http_status, row.input) == ("failed", code, http, 0)
    closed_once(house)


async def test_embeddings_that_are_cancelled_leave_a_row_that_says_so(house: House) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    answer = edges.Answer(hang)
    task = asyncio.create_task(pass_on(house, answer))
    async with asyncio.timeout(edges.BOUND):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [row.status for row in await house.rows()] == ["cancelled"]
    assert answer.closed == 1


@pytest.mark.parametrize("verb", ["open_row", "close_row"])
@pytest.mark.parametrize("required", [True, False])
async def test_embeddings_need_the_store_where_it_is_required(verb: str, required: bool) -> None:
    async with housed(store_required=required) as house:
        house.store.down = {verb}
        if required:
            with pytest.raises(StoreUnavailable):
                await pass_on(house, edges.Answer(EMBEDDED))
        else:
            assert await pass_on(house, edges.Answer(EMBEDDED)) == EMBEDDED
        assert house.count("weirgate_unremembered_calls_total") == (0 if required else 1)


async def test_a_card_without_a_price_says_so(house: House) -> None:
    provider = Provider(whole("x", usage=USAGE))
    destination = to(provider)
    free = changed(destination, target=changed(destination.target, card=ModelCard(name="real")))
    await house.gateway.serve(chat(), free, house.reader, "r", None)
    (row,) = await house.rows()
    assert (row.cost, row.unpriced) == (None, True)
