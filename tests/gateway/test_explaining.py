"""The driver of an explanation: its body is what the gateway then sends, and the store is only read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from proxy.core.agent import Agent, MemoryLimits, Skill
from proxy.core.errors import NotFound
from proxy.core.policy import Policy
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.explaining import explain
from tests.driving import House, chat, history, to
from tests.edges import BOUND, Provider, whole
from tests.replies import tool_call

TONE = Skill(id="t/tone", slug="tone", when="When the tone matters.", text="Be warm and short.")
SHELF = {"tone": TONE}
SUPPORT = Agent(name="support", model="real", instructions="Help.", skills=("tone",), effort="high")
SHORT = MemoryLimits(turns=3, result_turns=1, result_chars=200, step=1)
MINDFUL = msgspec.structs.replace(SUPPORT, memory=SHORT, tools=("load_skill", "read_tool_result"))
DROPPING = msgspec.structs.replace(MINDFUL, memory=msgspec.structs.replace(SHORT, leaving="drop"))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "base prompt": {"base": "You work for {tenant}."},
    "agent": {"agent": SUPPORT, "shelf": SHELF, "base": "You work for {tenant}."},
    "memory that folds": {"agent": MINDFUL, "shelf": SHELF},
    "memory that drops": {"agent": DROPPING, "shelf": SHELF},
}


def talk(turns: int, last: str = "And now?") -> Call:
    """With tool work in each turn."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        question, answer = history(1)[:2]
        calls = [{"id": f"c{turn}", "type": "function", "function": {"name": "grep", "arguments": '{"what":"x"}'}}]
        result = {"role": "tool", "tool_call_id": f"c{turn}", "content": f"/srv/part_{turn}.py: " + "found it " * 80}
        said += [question, {"role": "assistant", "content": None, "tool_calls": calls}, result, answer]
    tools = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}]
    body = {"model": "asked", "messages": [*said, {"role": "user", "content": last}], "tools": tools}
    return decode_call(
        json.dumps(body).encode(), Caller(tenant="t", key="k"), read_message, {"x-session-id": f"talk {turns}"}
    )


@pytest.mark.parametrize("case", [*CASES])
@pytest.mark.parametrize("turns", [1, 9])
async def test_the_body_is_what_the_gateway_then_sends(house: House, case: str, turns: int) -> None:
    for last in ("And now?", *(("/tone And now?",) if "agent" in CASES[case] else ())):
        provider = Provider(whole())
        call, destination = talk(turns, last), to(provider, **CASES[case])
        async with asyncio.timeout(BOUND):
            told, body = await explain(house.gateway, call, destination, window=None)
        assert {verb for verb, _ in house.store.asked} == {"recall"} and provider.requests == []
        await house.serve(call, provider, **CASES[case])
        assert provider.requests[0].body == body
        assert sum(part.tokens for part in told.parts) == told.tokens == house.reader.told[-1].tokens
        house.store.asked.clear()


async def test_rounds_of_an_earlier_turn_are_told_with_their_tokens(house: House) -> None:
    asks = whole("", calls=[tool_call("s1", "load_skill", {"name": "tone"})])
    provider = Provider(asks, whole("Done."))
    first = chat(0, headers={"x-session-id": "rounds"})
    await house.serve(first, provider, agent=SUPPORT, shelf=SHELF)
    messages = [*history(0), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "More?"}]
    call = chat(0, messages=messages, headers={"x-session-id": "rounds"})
    told, body = await explain(house.gateway, call, to(provider, agent=SUPPORT, shelf=SHELF), window=None)
    rounds = next(part for part in told.parts if part.layer == "rounds")
    assert rounds.messages == 2 and rounds.tokens > 5 and b"Be warm and short." in (body or b"")
    await house.serve(call, provider, agent=SUPPORT, shelf=SHELF)
    assert provider.requests[-1].body == body


async def test_nothing_is_learned_counted_or_leased(house: House) -> None:
    policy = Policy(window=2000)
    metrics = house.metrics.exposition()
    told, _ = await explain(house.gateway, talk(9), to(Provider(whole()), policy=policy), window=None)
    assert told.decision == "made" and told.compaction is not None and told.compaction.asks == ("real",)
    assert house.metrics.exposition() == metrics
    assert house.calibrations.known == () and house.gateway.leases.held == 0
    assert await house.rows() == []


async def test_another_window_is_only_asked_about(house: House) -> None:
    call, destination = talk(9), to(Provider(whole()))
    wide, _ = await explain(house.gateway, call, destination, window=100_000)
    known, _ = await explain(house.gateway, call, destination, window=None)
    assert wide.held is not None and (wide.decision, wide.held.source) == ("fits", "asked")
    assert known.held is not None and (known.held.window, known.held.source) == (4000, "policy")


async def test_what_cannot_be_served_cannot_be_explained(house: House) -> None:
    with pytest.raises(NotFound):
        await explain(
            house.gateway, talk(1, "/nothing Hi."), to(Provider(whole()), agent=SUPPORT, shelf=SHELF), window=None
        )


async def test_a_client_that_leaves_takes_its_question_along(house: House) -> None:
    asking = asyncio.ensure_future(explain(house.gateway, talk(9), to(Provider(whole())), window=None))  # noqa: TID251
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    told, _ = await explain(house.gateway, talk(9), to(Provider(whole())), window=None)
    assert told.tokens > 0
