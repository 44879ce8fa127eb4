"""What calls count as, through the driver: stages, the store, compactions by cause, results read again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from proxy.core.agent import MemoryLimits
from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Memory, Recall
from tests import edges
from tests.core.stacks import an_agent
from tests.driving import OVERFLOW, USAGE, WORDS, House, Housed, chat, history
from tests.edges import Provider, failing, streamed, whole
from tests.replies import tool_call, usage


def compactions(house: House) -> dict[tuple[str, ...], float]:
    """By trigger, writer and outcome."""
    return {labels[1:]: child.value for labels, child in house.metrics.compactions.children.items()}


def going_on(turns: int, more: int = 0) -> list[dict[str, Any]]:
    """A talk of `turns` that ends with a question; with `more`, the same one answered and gone on with."""
    talk = history(turns)
    return talk if not more else [*talk, {"role": "assistant", "content": "x"}, *history(more)]


def stages(house: House) -> dict[str, float]:
    names = ("prepare", "compact", "between", "finish")
    counted = {name: house.count("weirgate_added_seconds_count", stage=name) for name in names}
    return {name: value for name, value in counted.items() if value}


async def test_a_plain_call_is_prepared_once_and_finished_once(house: House) -> None:
    await house.serve(chat(stream=True), Provider(streamed("hello", usage=usage(100, 20, cached=64))))
    assert stages(house) == {"prepare": 1, "finish": 1}
    assert house.count("weirgate_store_seconds_count", operation="recall") == 1
    assert house.count("weirgate_uncached_tokens_total", model="other", why="first") == 36
    assert compactions(house) == {}


async def test_a_second_call_on_a_branch_says_what_was_new_and_what_the_cache_had_lost(house: House) -> None:
    await house.serve(chat(messages=going_on(2)), Provider(whole("x", usage=usage(100, 20))))
    await house.serve(chat(messages=going_on(2, 1)), Provider(whole("x", usage=usage(150, 20, cached=40))))
    assert house.count("weirgate_uncached_tokens_total", model="other", why="grown") == 50
    assert house.count("weirgate_uncached_tokens_total", model="other", why="lost") == 60


async def test_a_compaction_counts_what_it_kept_away_and_what_the_cache_must_read_anew(house: House) -> None:
    await house.serve(chat(messages=going_on(8)), Provider(whole("x", usage=usage(1500, 20))))
    assert house.count("weirgate_unread_tokens_total", model="other", by="compaction") == 0
    await house.serve(chat(messages=going_on(8, 20)), Provider(whole("x", usage=usage(1800, 20, cached=100))))
    assert compactions(house) == {("auto", "builtin", "stored"): 1}
    assert stages(house) == {"prepare": 1, "compact": 1, "finish": 2}
    kept_away = house.count("weirgate_unread_tokens_total", model="other", by="compaction")
    assert 500 < kept_away <= 4000
    # One nano-dollar a token, and no price of its own for a cached one.
    assert house.count("weirgate_saved_dollars_total", model="other") == pytest.approx(kept_away / 1e9)
    assert house.count("weirgate_uncached_tokens_total", model="other", why="compacted") == 1700


async def test_an_overflow_is_the_cause_of_the_compaction_that_cures_it(house: House) -> None:
    provider = Provider(failing(400, OVERFLOW), whole("x", usage=USAGE))
    await house.serve(chat(30), provider, window=100_000)
    assert compactions(house) == {("recovered", "builtin", "stored"): 1}
    assert stages(house) == {"prepare": 1, "between": 1, "finish": 1}
    assert house.count("weirgate_upstream_errors_total", **{"upstream": "main", "class": "overflow"}) == 1


async def test_a_command_and_memory_are_causes_too(house: House) -> None:
    mindful = an_agent(memory=MemoryLimits(turns=10, step=1))
    await house.serve(chat(30, user="u"), Provider(whole("fine", usage=USAGE)), window=100_000, agent=mindful)
    assert compactions(house) == {("memory", "builtin", "stored"): 1}
    talk = [{"role": "user", "content": "Look. " * 900}, {"role": "assistant", "content": "Seen. " * 900}]
    await house.serve(chat(messages=[*talk, *talk, {"role": "user", "content": "/compact"}]), Provider())
    assert compactions(house)["manual", "builtin", "stored"] == 1


async def test_memory_counts_what_it_kept_away(house: House) -> None:
    log = "gate shut " * 400
    talk: list[dict[str, Any]] = []
    for turn in range(6):
        call = tool_call(f"c{turn}", "read_log", {"gate": turn})
        talk += [
            {"role": "user", "content": f"And gate {turn}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": log},
            {"role": "assistant", "content": "Shut."},
        ]
    mindful = an_agent(memory=MemoryLimits(step=1))
    asked = chat(messages=[*talk, {"role": "user", "content": "Well?"}], user="u")
    await house.serve(asked, Provider(whole("fine", usage=USAGE)), window=100_000, agent=mindful)
    assert house.count("weirgate_unread_tokens_total", model="other", by="memory") > 2000
    assert house.count("weirgate_unread_tokens_total", model="other", by="compaction") == 0


async def test_a_compaction_that_comes_to_nothing_is_counted(house: House) -> None:
    hopeless = [{"role": "system", "content": WORDS * 1600}, {"role": "user", "content": "Well?"}]
    served = await house.serve(chat(messages=hopeless), Provider(whole("x", usage=USAGE)))
    assert served.outcome.report.compaction == "none"
    assert compactions(house) == {("auto", "none", "none"): 1}
    assert stages(house) == {"compact": 1, "finish": 1}


async def test_notes_that_another_call_made_between_our_look_and_our_claim_are_counted_as_shared(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.serve(chat(60), Provider(whole("x", usage=USAGE)))
    recall = house.store.recall
    looks = 0

    async def too_early(tenant: str, step: Recall, now: float) -> Memory:
        nonlocal looks
        looks += 1
        memory = await recall(tenant, step, now)
        return msgspec.structs.replace(memory, compactions=()) if looks == 1 else memory

    monkeypatch.setattr(house.store, "recall", too_early)
    served = await house.serve(chat(60), Provider(whole("x", usage=USAGE)))
    assert looks > 1 and served.outcome.report.compaction_id is not None
    assert compactions(house) == {("auto", "builtin", "stored"): 1, ("auto", "none", "shared"): 1}


async def test_a_whole_result_that_a_model_asks_for_is_counted_found_or_missing(house: House) -> None:
    wanted = tool_call("w1", "read_tool_result", {"reference": "res_nowhere"})
    agent = an_agent(memory=MemoryLimits(step=1), tools=("read_tool_result",))
    provider = Provider(whole("", calls=[wanted], usage=USAGE), whole("Done.", usage=USAGE))
    await house.serve(chat(user="u"), provider, agent=agent)
    assert house.count("weirgate_references_read_total", outcome="missing") == 1
    assert house.count("weirgate_references_read_total", outcome="found") == 0


@pytest.mark.parametrize("verb", ["recall", "open_row", "close_row", "remember"])
async def test_a_store_that_fails_is_counted_and_leaves_nobody_waiting(house: House, verb: str) -> None:
    house.store.down = {verb}
    with pytest.raises(StoreUnavailable):
        await house.serve(chat(), Provider(whole("hello")))
    assert house.count("weirgate_store_failures_total") == 1
    assert house.count("weirgate_store_waiting") == 0


async def test_a_call_that_waits_for_its_rows_is_seen_waiting(housed: Housed) -> None:
    async with housed() as house:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        close_row = house.store.close_row
        house.store.close_row = lambda row: asyncio.ensure_future(held(close_row(row)))  # type: ignore[assignment, method-assign]  # noqa: TID251

        async def held(closing: asyncio.Future[None]) -> None:
            await gate
            await closing

        serving = asyncio.create_task(house.serve(chat(), Provider(whole("hello"))))
        async with asyncio.timeout(edges.BOUND):
            while not house.count("weirgate_store_waiting"):
                await (
                    house.store.ready()
                )  # not a bare turn of the loop, which would keep the store's thread from its work
        gate.set_result(None)
        await serving
        assert house.count("weirgate_store_waiting") == 0
