"""The driver: every step performed once, every row closed once, one compaction a branch."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proxy.core.agent import MemoryLimits
from proxy.core.usage import UsageRow
from proxy.upstream import Request
from tests import edges
from tests.core.stacks import an_agent
from tests.driving import USAGE, WORDS, House, chat, closed_once
from tests.edges import Provider, WatchedStore, events, streamed, whole
from tests.replies import chat_chunks, usage

STORED = {"model": "other", "trigger": "auto", "writer": "builtin", "outcome": "stored"}

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
    assert house.count("weirgate_compactions_total", **STORED) == 1
    again = await house.serve(chat(60), provider)
    assert again.outcome.report.compaction_id == served.outcome.report.compaction_id
    assert provider.bodies()[0]["messages"] == provider.bodies()[1]["messages"]
    assert house.count("weirgate_compactions_total", **STORED) == 1
    assert len(house.store.verbs("claim")) == len(house.store.verbs("release")) == 1


async def test_two_calls_on_one_branch_make_one_compaction(house: House) -> None:
    gate, waiting = asyncio.Event(), asyncio.Event()
    remember = house.store.remember

    async def slowly(tenant: str, what: Any, now: float) -> None:
        if what.compaction is not None and tenant == "t":
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
    assert house.gateway.leases.held == 0
    served = await house.serve(chat(messages=hopeless), provider)
    assert served.outcome.report.compaction == "none"
    assert not first.done()
    gate.set()
    await first


async def test_a_call_that_folds_and_then_compacts_does_not_wait_for_itself(house: House) -> None:
    """Turns that slid out of memory are folded; what is left may be too long, and is compacted in the same call."""
    mindful = an_agent(memory=MemoryLimits(turns=10, step=1))
    served = await house.serve(chat(30, user="u"), Provider(whole("fine", usage=USAGE)), window=800, agent=mindful)
    assert served.outcome.report.compaction == "auto"
    assert len([what for what in house.store.verbs("remember") if what.compaction is not None]) == 2
    assert len(house.store.verbs("claim")) == 1
    await house.gateway.drain()
    assert house.gateway.leases.held == 0


async def test_a_lease_that_another_process_holds_is_respected(house: House) -> None:
    answers = [False, True]

    async def taken(*_: Any) -> bool:
        return answers.pop(0)

    house.store.claim = taken  # type: ignore[method-assign]
    await house.serve(chat(60), Provider(whole("x")))
    assert len(house.store.verbs("recall")) == 2


async def test_notes_that_another_process_stored_just_before_our_lease_are_found(house: House) -> None:
    """It had the lease and gave it back between our recall and our claim: nobody had to wait."""
    claim, store, others = house.store.claim, house.store, []
    with ThreadPoolExecutor(1) as workers:
        other = House(store, workers)

        async def late(*asked: Any) -> bool:
            store.claim = claim  # type: ignore[method-assign]
            others.append(await other.serve(chat(60), Provider(whole("x"))))
            await other.gateway.drain()
            return await claim(*asked)

        store.claim = late  # type: ignore[method-assign]
        served = await house.serve(chat(60), Provider(whole("x")))
    assert served.outcome.report.compaction_id == others[0].outcome.report.compaction_id
    assert len([what for what in store.verbs("remember") if what.compaction is not None]) == 1
