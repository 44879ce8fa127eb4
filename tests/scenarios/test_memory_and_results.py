"""An agent with memory, as a client and a provider see it: cut results, and the tool that reads them whole."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.gate import Answer, Gate, Wire, assistant, gate, prompts, tool, user
from tests.strict import StrictUpstream

LONG = "".join(f"row {number}: value {number * 7}\n" for number in range(1500))
FIRST = [
    user("List the rows."),
    assistant("I look.", tool_call("c1", "rows", {})),
    tool("c1", LONG),
    assistant("Listed."),
]
SECOND = [*FIRST, user("What is in row 777?")]
_REFERENCE = re.compile(r"res_[a-z2-7]+")
READ = "read_tool_result"

Says = Callable[[SeenRequest], Wire | str]


def agents(**more: Any) -> dict[str, Any]:
    return {
        "models": {"fast": {"upstream": "main", "model": "scripted"}},
        "agents": {"clerk": {"model": "fast", "instructions": "Help.", "tools": [READ], **more}},
    }


def reference(messages: Sequence[Wire]) -> str:
    """The reference in the newest message that names one."""
    found: list[list[str]] = [_REFERENCE.findall(str(item.get("content"))) for item in messages]
    return next(names[-1] for names in reversed(found) if names)


def reads(**asked: Any) -> Says:
    """A model that reads the whole of what is cut, then answers."""

    def says(request: SeenRequest) -> Wire | str:
        if request.messages[-1]["role"] == "tool" and request.messages[-1]["tool_call_id"] == "r1":
            return "Row 777 holds 5439."
        return {
            "content": "I read it. ",
            "tool_calls": [
                tool_call(
                    "r1", READ, asked if "reference" in asked else {"reference": reference(request.messages), **asked}
                )
            ],
        }

    return says


async def ask(
    weir: Gate, messages: Sequence[Wire], *, stream: bool = False, key: str = "", label: str = "talk"
) -> Answer:
    headers = {"x-session-id": label, **({"authorization": f"Bearer {key}"} if key else {})}
    return await weir.ask(messages, model="clerk", stream=stream, headers=headers)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_cut_result_is_read_again_within_one_answer(stream: bool) -> None:
    strict = StrictUpstream(window=None, answer=reads(offset=15_000, limit=4_000))
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        answer = await ask(weir, SECOND, stream=stream)
        asked, continued = prompts(up)
    assert answer.status == 200
    assert answer.message["content"] == "I read it. \n\nRow 777 holds 5439."
    assert not answer.message.get("tool_calls")
    assert answer.done is stream
    assert strict.violations == []
    cut = asked[3]["content"]
    assert len(cut) <= 400
    assert cut.startswith("row 0: value 0\n")
    assert cut.endswith("row 1499: value 10493\n")
    assert asked[2] == {"role": "assistant", "content": None, "tool_calls": FIRST[1]["tool_calls"]}
    piece = continued[-1]["content"]
    assert piece.partition("\n")[2] == LONG[15_000:19_000]
    assert piece.startswith(
        f"[characters 15000 to 19000 of {len(LONG)}; {len(LONG) - 19_000} are left, from offset 19000]"
    )


async def test_the_next_turn_tells_what_was_read_as_any_other_result() -> None:
    strict = StrictUpstream(window=None, answer=reads())
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        answer = await ask(weir, SECOND)
        strict.answer = lambda request: "Gladly."
        await ask(weir, [*SECOND, answer.message, user("Thank you.")])
        last = prompts(up)[-1]
    told = [item for item in last if item["role"] == "tool"]
    assert [len(item["content"]) <= 400 for item in told] == [True, True]
    assert [call["function"]["name"] for item in last for call in item.get("tool_calls") or ()] == ["rows", READ]
    assert last[-2]["content"] == "Row 777 holds 5439."
    assert strict.violations == []


async def test_a_reference_leads_to_the_whole_after_a_restart(tmp_path: Path) -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    async with ScriptedUpstream(strict) as up:
        async with gate(up.url, file=tmp_path / "w.db", **agents()) as weir:
            await ask(weir, SECOND)
        name = reference(prompts(up)[0])
        strict.answer = reads(reference=name, limit=20_000)
        async with gate(up.url, file=tmp_path / "w.db", **agents()) as weir:
            await ask(weir, [user("Where were we?")])
        assert prompts(up)[-1][-1]["content"].partition("\n")[2] == LONG[:20_000]


async def test_and_after_a_compaction() -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        await ask(weir, SECOND)
        before = reference(prompts(up)[0])
        history = [*SECOND, assistant("Listed.")]
        line = (await ask(weir, [*history, user("/compact")])).message
        strict.answer = reads(reference=before)
        await ask(weir, [*history, user("/compact"), line, user("Once more, please.")])
        asked, answered = prompts(up)[-2:]
    assert "<conversation-notes" in str(asked[1]["content"])
    assert answered[-1]["content"].partition("\n")[2] == LONG[:8_000]


@pytest.mark.parametrize("what", ["foreign", "unknown", "purged"])
async def test_what_is_not_this_callers_is_missing_in_the_same_words(what: str) -> None:
    keys = [("acme", "a", "secret-of-acme-0123456789"), ("other", "o", "secret-of-other-012345678")]
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    async with ScriptedUpstream(strict) as up, gate(up.url, keys=keys, **agents()) as weir:
        await ask(weir, SECOND, key=keys[0][2])
        name = reference(prompts(up)[0])
        if what == "purged":
            await weir.store.purge("acme", time.time() + 10)
        strict.answer = reads(reference="res_" + "a" * 20 if what == "unknown" else name)
        await ask(weir, [user("Where were we?")], key=keys[what == "foreign"][2], label="another")
        said = prompts(up)[-1][-1]["content"]
    assert re.sub("res_[a-z0-9]+", "NAME", said) == (
        "Nothing was read: no result NAME is kept here. The call that it came from can be made again."
    )


async def test_a_model_that_reads_for_ever_is_made_to_answer() -> None:
    def says(request: SeenRequest) -> Wire | str:
        if request.json.get("tool_choice") == "none":
            return "Enough."
        return {"content": None, "tool_calls": [tool_call("r1", READ, {"reference": reference(request.messages)})]}

    strict = StrictUpstream(window=None, answer=says)
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        answer = await ask(weir, SECOND)
    assert answer.message["content"] == "Enough."
    assert len(strict.prompts) == 9
    assert strict.violations == []


async def test_beside_the_clients_own_call_it_is_answered_and_both_stand_together_next_time() -> None:
    def says(request: SeenRequest) -> Wire | str:
        if request.messages[-1]["role"] == "tool":
            return "Both read."
        calls = [
            tool_call("r1", READ, {"reference": reference(request.messages)}),
            tool_call("c2", "rows", {"from": 9}),
        ]
        return {"content": None, "tool_calls": calls}

    strict = StrictUpstream(window=None, answer=says)
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        answer = await ask(weir, SECOND)
        assert [call["function"]["name"] for call in answer.message["tool_calls"]] == ["rows"]
        await ask(weir, [*SECOND, answer.message, tool("c2", "row 9")])
        last = prompts(up)[-1]
    assert [call["function"]["name"] for call in last[-3]["tool_calls"]] == [READ, "rows"]
    assert {item["tool_call_id"] for item in last[-2:]} == {"r1", "c2"}
    assert strict.violations == []


async def test_no_reference_is_told_where_nobody_could_use_it() -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    mine = {"type": "function", "function": {"name": READ, "parameters": {}}}
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents()) as weir:
        await weir.ask(SECOND, model="clerk", tools=[mine], headers={"x-session-id": "one"})
        await weir.ask(SECOND, model="clerk", response_format={"type": "json_object"}, headers={"x-session-id": "two"})
        seen = prompts(up)
        stored = await weir.stored()
    assert [_REFERENCE.findall(str(messages)) for messages in seen] == [[], []]
    assert all("left out here by the gateway" in messages[3]["content"] for messages in seen)
    assert stored["result"] == 0


async def test_the_tools_of_a_conversation_are_those_it_began_with(tmp_path: Path) -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    async with ScriptedUpstream(strict) as up:
        for tools in ([], [READ]):
            async with gate(up.url, file=tmp_path / "w.db", **agents(tools=tools)) as weir:
                await ask(weir, SECOND[: 1 if not tools else None])
        old = up.ledger[-1].request.json
        async with gate(up.url, file=tmp_path / "w.db", **agents()) as weir:
            await ask(weir, SECOND, label="fresh")
        new = up.ledger[-1].request.json
    assert "tools" in new
    assert "tools" not in old
    assert not _REFERENCE.search(str(old["messages"]))


async def test_turns_that_slide_out_leave_notes_with_what_the_user_said() -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Noted.")
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents(memory={"turns": 3, "step": 1})) as weir:
        history: list[Wire] = []
        for number in range(8):
            history.append(user(f"Remember that box {number} is blue."))
            history.append((await ask(weir, history)).message)
        last = prompts(up)[-1]
        stored = await weir.stored()
    assert [item["role"] for item in last[:2]] == ["system", "user"]
    assert "<conversation-notes" in last[1]["content"]
    assert all(f"box {number} is blue" in last[1]["content"] for number in range(4))
    assert [item["content"] for item in last[2:]] == [item["content"] for item in history[8:15]]
    assert stored["compaction"] == 4
    assert strict.violations == []


async def test_without_memory_all_is_told_word_for_word() -> None:
    strict = StrictUpstream(window=None, answer=lambda request: "Listed.")
    async with ScriptedUpstream(strict) as up, gate(up.url, **agents(memory="off")) as weir:
        await ask(weir, SECOND)
        await weir.ask(SECOND, model="fast")
        agent, plain = prompts(up)
    assert agent[1:] == SECOND
    assert plain == SECOND
