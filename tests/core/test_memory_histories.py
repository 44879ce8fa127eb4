"""Memory on histories that no recording has: all that can be odd about one, at once, and the same checks."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.dry import Store
from benchmarks.memory_cost import played
from proxy.core import chain
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Block, Message, Reasoning, Role, Text, ToolCall, ToolResult, lawful
from proxy.core.own_compaction import asks_for_summary
from proxy.core.pacing import SLACK
from proxy.core.policy import Tariff
from proxy.dialects.chat.messages import read_message
from tests.core.histories import PICTURE, call, long_texts, model, result, system, texts, user
from tests.remembering import faults, parted_faults, shape_faults

CACHED = Tariff(input=1000, output=0, cached=100, cache_write=1250)
SMALL = MemoryLimits(turns=3, calls=2, result_turns=1, result_chars=200, argument_chars=40, step=1)
said = st.one_of(texts, long_texts)
empty = st.sampled_from(["", " ", "\n"])
results = st.one_of(said, empty, st.sampled_from(["Error: no such file", "exit code 1", '{"error": "x"}']))
arguments = st.one_of(
    st.builds(lambda text: msgspec.json.encode({"path": text, "deep": [{"again": text}]}).decode(), said),
    st.sampled_from(["", "{}", "not json", '"text"', "[1, 2]", '{"a": 1, "a": 2}', "[" * 30 + "]" * 30]),
    st.builds(lambda text: '{"path": "\\ud800' + "\\udc00 \\n" * text + '"}', st.integers(1, 60)),
)
ids = st.sampled_from(["call_0", "call_1", "call_2", "call_0_1", ""])
"""So few that they are used again, within a batch too."""


@st.composite
def batch(draw: st.DrawFn) -> list[Message]:
    """Parallel calls, with results in any order, some missing, some double."""
    calls = [
        ToolCall(id=draw(ids), name=draw(st.sampled_from(["read", "write", "load_skill"])), arguments=text)
        for text in draw(st.lists(arguments, min_size=1, max_size=4))
    ]
    blocks: list[Block] = [Reasoning(text="I wonder.")] if draw(st.booleans()) else []
    blocks += [Text(text=draw(st.one_of(said, empty)))] if draw(st.booleans()) else []
    media = (PICTURE,) if draw(st.booleans()) else ()
    answers = [
        chain.message("tool", (ToolResult(call_id=each.id or draw(ids) or "zz", text=draw(results), media=media),))
        for each in draw(st.permutations(calls))
        if draw(st.integers(0, 5))
    ]
    answers += answers[:1] if draw(st.integers(0, 7)) == 0 else []
    return [chain.message("assistant", (*blocks, *calls)), *answers]


@st.composite
def text_action(draw: st.DrawFn) -> list[Message]:
    """An agent that acts in prose; what it observes comes as the user's message."""
    return [
        model(f"I run it.\n```bash\n{draw(texts)}\n```"),
        user(f"Observation: {draw(results)}", *((PICTURE,) if draw(st.booleans()) else ())),
    ]


@st.composite
def legacy(draw: st.DrawFn) -> list[Message]:
    """The old function API, which knew no ids."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": draw(arguments)}}
    answer = {"role": "function", "name": "read", "content": draw(results)}
    both: list[dict[str, Any]] = [asked, answer] if draw(st.integers(0, 4)) else [asked]
    return [read_message(msgspec.json.encode(each), 0) for each in both]


@st.composite
def spoken(draw: st.DrawFn) -> list[Message]:
    """Prose of anybody, empty or not, with or without thoughts and a name."""
    roles: tuple[Role, ...] = ("user", "assistant", "assistant", "system", "developer")
    role = draw(st.sampled_from(roles))
    thought: tuple[Block, ...] = (Reasoning(text="Hm."),) if role == "assistant" and draw(st.booleans()) else ()
    name = draw(st.sampled_from([None, None, "ann", "bob"]))
    return [chain.message(role, (*thought, Text(text=draw(st.one_of(said, empty)))), name=name)]


@st.composite
def orphan(draw: st.DrawFn) -> list[Message]:
    return [result(draw(ids) or "zz", draw(results))]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Turns, each of them opened and then interrupted anywhere."""
    found: list[Message] = [system("Be brief.")] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 7))):
        found += [user(draw(said), *((PICTURE,) if draw(st.integers(0, 3)) == 0 else ()))]
        pieces = st.one_of(batch(), batch(), text_action(), legacy(), spoken(), orphan())
        for piece in draw(st.lists(pieces, max_size=5)):
            found += piece
    return tuple(found)


def calls(messages: tuple[Message, ...]) -> list[int]:
    """Some places where a model could be asked."""
    ends = [at for at in range(1, len(messages) + 1) if messages[at - 1].role in ("user", "tool", "function")]
    return sorted({*ends[:: max(1, len(ends) // 5)], len(messages)})


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.sampled_from([1, 2, None]), st.sampled_from([None, 3_000]))
def test_whatever_a_history_is_the_limits_hold(
    messages: tuple[Message, ...], step: int | None, window: int | None
) -> None:
    limits = msgspec.structs.replace(SMALL, step=step)
    beyond = SLACK if step is None else step - 1
    for each in played(messages, limits, CACHED, window=window, steps=calls(messages)):
        if not asks_for_summary(each.shown):
            assert faults(each, limits, beyond=beyond) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_and_where_prompts_must_alternate_they_do(messages: tuple[Message, ...]) -> None:
    # No model that asks for this knows the old function API.
    messages = tuple(item for item in messages if item.wire is None)
    for each in played(messages, SMALL, alternate=True, steps=calls(messages)):
        assert [*shape_faults(each.prompt.messages), *parted_faults(each.prompt.messages)] == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.sampled_from([1, 2]))
def test_what_is_told_by_notes_and_memory_together_is_there_again_in_another_replica(
    messages: tuple[Message, ...], step: int
) -> None:
    limits = msgspec.structs.replace(SMALL, step=step)
    store = Store()
    first = list(played(messages, limits, store=store, steps=[len(messages)]))
    again = list(played(messages, limits, store=store, steps=[len(messages)]))
    assert [each.prompt.messages for each in first] == [each.prompt.messages for each in again]


def test_the_checks_see_what_is_wrong() -> None:
    """A history that nobody repaired or trimmed has many of the faults, or they could not be found."""
    turn = (user("Go."), model("I look.", call("a", text="x" * 90), call("b")), result("a", "1" * 900))
    (each,) = played((*turn, *turn, *turn, *turn, user("On.")), SMALL, steps=[13])
    bare = msgspec.structs.replace(each.prompt, messages=each.shown)
    kinds = {fault.split(":")[0] for fault in faults(msgspec.structs.replace(each, prompt=bare), SMALL)}
    assert kinds >= {"turns", "narration", "arguments", "result"}
    lawful(each.prompt.messages)
