"""Conversations that no provider would take as they stand: repaired, counted, and told what was done.

The recorded sets hold all of these (broken, reused-call-ids, parallel-calls, consecutive-user-messages, image); here
each stands alone and small, and again in a history that has to be compacted.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.gate import Answer, Wire, assistant, dialogue, gate, system, tool, user
from tests.strict import StrictUpstream, violation

SYSTEM = system("Be brief.")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE: Wire = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}, "x_kept": True}


def call(id: str, path: str = "a.py") -> Wire:
    return tool_call(id, "read", {"path": path})


SHAPES: dict[str, tuple[list[Wire], int]] = {
    "orphan result": ([user("Hi"), tool("gone", "Old result."), user("Go on.")], 1),
    "orphan result at the front": ([tool("gone", "Old result."), user("Go on.")], 1),
    "missing result": ([user("Read."), assistant(None, call("c1")), user("Never mind.")], 1),
    "missing result at the end": ([user("Read."), assistant(None, call("c1"))], 1),
    "one of two results missing": ([user("Read."), assistant(None, call("c1"), call("c2")), tool("c2", "Two.")], 1),
    "late result": (
        [user("Read."), assistant(None, call("c1")), assistant("Wait."), tool("c1", "One."), user("So?")],
        1,
    ),
    "result twice": ([user("Read."), assistant(None, call("c1")), tool("c1", "One."), tool("c1", "Again.")], 1),
    "empty user": ([user("Hi"), assistant("Yes?"), user(""), user("Go on.")], 1),
    "empty assistant": ([user("Hi"), assistant(""), user("Go on.")], 1),
    "blank assistant": ([user("Hi"), assistant(" \n"), user("Go on.")], 1),
    "null assistant": ([user("Hi"), assistant(None), user("Go on.")], 1),
    "empty result": ([user("Read."), assistant(None, call("c1")), tool("c1", "")], 1),
    "two calls with one id": (
        [user("Read."), assistant(None, call("c1"), call("c1", "b.py")), tool("c1", "One."), tool("c1", "Two.")],
        2,
    ),
}
SOUND: dict[str, list[Wire]] = {
    "parallel calls": [user("Read."), assistant(None, call("c1"), call("c2")), tool("c1", "1"), tool("c2", "2")],
    "results in another order": [
        user("Read."),
        assistant(None, call("c1"), call("c2")),
        tool("c2", "2"),
        tool("c1", "1"),
    ],
    "an id used again in a later turn": [
        *[user("Read."), assistant(None, call("c1")), tool("c1", "1"), assistant("So.")],
        *[user("Again."), assistant(None, call("c1", "b.py")), tool("c1", "2")],
    ],
    "neighbours": [user("One."), user("Two."), assistant("Yes."), assistant("And?"), user("Three.")],
    "system inside": [user("One."), assistant("Yes."), system("Now in French."), user("Three.")],
    "image": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}],
    "text with calls": [user("Read."), assistant("Let me see.", call("c1")), tool("c1", "1")],
}


async def sent(messages: list[Wire], **more: object) -> tuple[Answer, list[Wire], StrictUpstream]:
    """The answer, the prompt that was accepted, and the judge of it."""
    strict = StrictUpstream(window=None, answer=lambda request: "Well.")
    async with ScriptedUpstream(strict) as up, gate(up.url, window=8_000, **more) as weir:  # type: ignore[arg-type]
        answer = await weir.ask(messages)
        row = (await weir.rows())[-1]
    assert row.repaired == int(answer.headers.get("x-weirgate-repaired", "0"))
    return answer, up.ledger[-1].request.messages, strict


@pytest.mark.parametrize(("messages", "repairs"), SHAPES.values(), ids=SHAPES)
async def test_a_broken_history_is_repaired_and_counted(messages: list[Wire], repairs: int) -> None:
    before = violation({"messages": messages})
    answer, prompt, strict = await sent(messages)
    assert (answer.status, strict.violations) == (200, [])
    assert answer.headers["x-weirgate-repaired"] == str(repairs)
    ids = [[one["id"] for one in message.get("tool_calls") or ()] for message in prompt]
    assert all(len(set(each)) == len(each) for each in ids)
    assert all(message.get("content") or message.get("tool_calls") for message in prompt)
    assert before is not None or prompt != messages


async def test_repairs_say_what_they_did() -> None:
    _, orphan, _ = await sent(SHAPES["orphan result"][0])
    assert orphan[1]["role"] == "user" and "> Old result." in orphan[1]["content"]
    _, missing, _ = await sent(SHAPES["missing result"][0])
    assert missing[2] == {"role": "tool", "tool_call_id": "c1", "content": "No result: this call never returned."}
    _, late, _ = await sent(SHAPES["late result"][0])
    assert [message["role"] for message in late] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND)
async def test_a_sound_history_is_sent_as_it_is(messages: list[Wire]) -> None:
    answer, prompt, strict = await sent(messages)
    assert (answer.status, strict.violations, prompt) == (200, [], messages)
    assert "x-weirgate-repaired" not in answer.headers


@pytest.mark.parametrize("messages", [[system("Only me.")], [user("")], [assistant("")], [user("Hi"), user(" ")][1:]])
async def test_a_history_that_holds_nothing_to_answer_is_a_400_or_sent_untouched(messages: list[Wire]) -> None:
    strict = StrictUpstream(window=None)
    async with ScriptedUpstream(strict) as up, gate(up.url, window=8_000) as weir:
        answer = await weir.ask(messages)
    if messages[0]["role"] == "system":
        assert answer.status == 200 and up.ledger[0].request.messages == messages
    else:
        assert (answer.status, answer.code, len(up.ledger)) == (400, "invalid_messages", 0)


@pytest.mark.parametrize("messages", [shape for shape, _ in SHAPES.values()], ids=SHAPES)
async def test_a_broken_history_is_repaired_in_a_conversation_that_is_compacted(messages: list[Wire]) -> None:
    """At the front, where it is covered, in the tail, and as the newest group."""
    strict = StrictUpstream(window=2_000, answer=lambda request: "Well.")
    long = dialogue(8, words=80)
    async with ScriptedUpstream(strict) as up, gate(up.url, window=2_000) as weir:
        for history in (
            [SYSTEM, *messages, *long, user("And?")],
            [SYSTEM, *long, *messages, user("And?")],
            [SYSTEM, *long, *messages],
        ):
            answer = await weir.ask(history)
            assert (answer.status, strict.violations) == (200, [])
            assert answer.compaction in ("auto", "recovered") and int(answer.headers["x-weirgate-repaired"]) >= 1
    assert strict.served == 3


async def test_neighbours_are_merged_where_the_policy_says_so(tmp_path: Path) -> None:
    messages = [SYSTEM, user("One."), user("Two."), assistant("Yes."), assistant("And?"), user("Three.")]
    answer, prompt, _ = await sent(messages, policy="alternate: true\n", folder=tmp_path)
    assert answer.headers["x-weirgate-repaired"] == "2"
    assert prompt == [SYSTEM, user("One.\n\nTwo."), assistant("Yes.\n\nAnd?"), user("Three.")]


async def test_a_compacted_prompt_alternates_where_the_policy_says_so(tmp_path: Path) -> None:
    strict = StrictUpstream(window=2_000, answer=lambda request: "Well.")
    policy = "alternate: true\n"
    loop = [message for n in range(6) for message in (assistant(None, call(f"c{n}")), tool(f"c{n}", f"line {n} " * 60))]
    async with ScriptedUpstream(strict) as up, gate(up.url, window=2_000, policy=policy, folder=tmp_path) as weir:
        for history in ([SYSTEM, *dialogue(9, words=80), user("And?")], [SYSTEM, *dialogue(5), user("Read."), *loop]):
            answer = await weir.ask(history)
            assert answer.compaction == "auto"
            roles = [message["role"] for message in up.ledger[-1].request.messages]
            plain = [role for role in roles if role != "tool"]
            assert not any(one == other == "user" for one, other in pairwise(roles)), roles
            assert plain[:2] == ["system", "user"]
    assert strict.violations == []


async def test_an_image_in_the_tail_is_kept_with_all_its_members_and_one_that_is_covered_is_named() -> None:
    strict = StrictUpstream(window=2_000, answer=lambda request: "Well.")
    picture: Wire = {"role": "user", "content": [{"type": "text", "text": "What is on picture-7?"}, IMAGE]}
    async with ScriptedUpstream(strict) as up, gate(up.url, window=2_000) as weir:
        answer = await weir.ask([SYSTEM, *dialogue(8, words=80), picture])
        assert answer.compaction == "auto"
        assert up.ledger[-1].request.messages[-1] == picture
        answer = await weir.ask([SYSTEM, picture, assistant("A dot."), *dialogue(8, words=80), user("And?")])
        assert answer.compaction == "auto"
        told = json.dumps(up.ledger[-1].request.messages)
    assert "iVBORw0KGgo" not in told and "picture-7" in told and "[image]" in told


async def test_a_result_of_parts_keeps_its_image() -> None:
    result: Wire = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Seen."}, IMAGE]}
    messages = [user("Look."), assistant(None, call("c1")), result]
    _, prompt, strict = await sent(messages)
    assert (prompt, strict.violations) == (messages, [])


async def test_the_same_repair_gives_the_same_bytes_in_the_next_call() -> None:
    """A repaired beginning is as good a prefix for the provider's cache as any other."""
    broken = [SYSTEM, *SHAPES["orphan result"][0], *SHAPES["missing result"][0]]
    strict = StrictUpstream(window=None, answer=lambda request: f"Answer {len(request.messages)}.")
    async with ScriptedUpstream(strict) as up, gate(up.url, window=8_000) as weir:
        history = list(broken)
        for turn in range(5):
            answer = await weir.ask(history)
            history += [answer.message, user(f"More {turn}.")]
        sequence = [entry.request.messages for entry in up.ledger]
    for before, after in pairwise(sequence):
        assert after[: len(before)] == before


async def test_deep_and_long_histories_of_calls_stay_whole() -> None:
    """Two hundred calls of one turn, in parallel by four: every prompt pairs each call with its result."""

    def calling(request: SeenRequest) -> Wire:
        number = len(request.body) % 997
        return assistant(None, *(call(f"c{number}_{one}", f"src/{number}_{one}.py") for one in range(4)))

    strict = StrictUpstream(window=3_000, answer=calling)
    async with ScriptedUpstream(strict) as up, gate(up.url, window=3_000) as weir:
        history: list[Wire] = [SYSTEM, user("Read everything and keep the plan-4711 in mind.")]
        for _ in range(50):
            answer = await weir.ask(history)
            assert answer.status == 200, answer.body
            history.append(answer.message)
            history += [tool(one["id"], f"{one['id']} " * 20) for one in answer.message["tool_calls"]]
            assert "plan-4711" in json.dumps(up.ledger[-1].request.messages)
    assert (strict.violations, strict.overflows) == ([], 0)
