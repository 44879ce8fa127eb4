"""Questions to the user where a conversation is told shorter than it is: by compactions, commands and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Script, SeenRequest, chat_reply, tool_call, usage
from tests.scenarios.gate import Answer, Wire, assistant, dialogue, prompts, shown, tool, user
from tests.scenarios.pausing import QUESTION, WEEK, Talk, approves, asking, asks, honest, last, later, pause_of
from tests.scenarios.skilled import FOUND, GREP, loads, saying

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
ASKED = honest("Let me see.", asks())
DONE = honest("Dear Ann.")
RUNNING = "Not compacted: the latest turn is running or paused."
MEMORY: dict[str, Any] = {"memory": {"step": 1}}


@both
async def test_a_paused_turn_is_not_compacted_and_takes_its_answer_all_the_same(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        talk.messages = dialogue(6)
        await talk.say("Write to Ann.")
        assert (await talk.say("/compact")).text == RUNNING
        await talk.say("2")
        assert last(up, 2) == [
            {"role": "assistant", "content": "Let me see.", "calls": ["q1"]},
            {"role": "tool", "content": "2", "answers": "q1"},
        ]
        done = await talk.say("/compact")
        assert done.text.startswith("Conversation compacted: turns 1-6")


@both
async def test_a_question_that_expired_keeps_nobody_from_compacting(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, _):
        talk = Talk(weir, stream=stream)
        talk.messages = dialogue(6)
        await talk.say("Write to Ann.")
        later(weir, WEEK + 60)
        assert (await talk.say("/compact")).text.startswith("Conversation compacted: ")


@both
async def test_a_command_while_the_client_runs_a_tool_is_refused_as_ever(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("See.", FOUND)) as (weir, _):
        talk = Talk(weir, stream=stream)
        talk.messages = dialogue(2)
        await talk.say("Find it.", tools=[GREP])
        assert (await talk.say(tool("g1", "found"), "/compact", tools=[GREP])).text == RUNNING


@both
async def test_a_compaction_between_keeps_the_question_with_its_answer(stream: bool, tmp_path: Path) -> None:
    long = " ".join(f"harbour{number}" for number in range(900))
    async with asking(tmp_path, ASKED, honest("Hm.", asks("And when?", (), id="q2")), DONE, window=4_096) as (weir, up):
        talk = Talk(weir, stream=stream)
        talk.messages = dialogue(8)
        await talk.say("Write to Ann.")
        answer = await talk.say(f"The second, who wrote: {long}")
        assert answer.compaction == "auto"
        call, result = prompts(up)[-1][-2:]
        assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "q1"
        assert result["content"].startswith("The second, who wrote: harbour0 ")
        assert "Write to Ann." in [item["content"] for item in prompts(up)[-1]]
        await talk.say("Tomorrow.")
        assert last(up, 1) == [{"role": "tool", "content": "Tomorrow.", "answers": "q2"}]


@both
async def test_notes_of_the_first_part_of_a_turn_hold_what_the_user_answered_in_it(
    stream: bool, tmp_path: Path
) -> None:
    """The turn goes on for many calls of the client's tools: question and answer are covered, never lost."""
    rows = " ".join(f"row{number}" for number in range(300))
    finds = [honest(None, tool_call(f"g{number}", "grep", {"for": str(number)})) for number in range(9)]
    async with asking(tmp_path, ASKED, *finds, DONE, window=4_096) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann, never to Bob.")
        answer = await talk.say("The second, she of Mill Lane.", tools=[GREP])
        while answer.message.get("tool_calls"):
            id = answer.message["tool_calls"][0]["id"]
            answer = await talk.say(tool(id, f"{id}: {rows}"), tools=[GREP])
        told = prompts(up)[-1]
        notes = next(item["content"] for item in told if str(item["content"]).startswith("<conversation-notes"))
        assert "(asked: Which Ann? Ann Berg Ann Cole)\nThe second, she of Mill Lane." in notes
        assert user("Write to Ann, never to Bob.") in told
        assert "turn 2" not in notes  # an answer begins no turn


@both
async def test_memory_tells_a_closed_turn_with_its_question_and_all_of_the_answer(stream: bool, tmp_path: Path) -> None:
    long = " ".join(["The second,", *(f"of house {number}" for number in range(200))])
    acts = (saying("Hm.", loads()), ASKED, saying("See.", FOUND), DONE, saying("Gladly."))
    async with asking(tmp_path, *acts, agent=MEMORY) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        await talk.say(long, tools=[GREP])
        await talk.say(tool("g1", "found " * 400), tools=[GREP])
        await talk.say("Thanks.", tools=[GREP])
        closed = last(up, 9)[:-1]
        assert [item["role"] for item in closed[-8:]] == [
            "user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant",
        ]  # fmt: skip
        assert closed[-4] == {"role": "tool", "content": long, "answers": "q1"}
        assert closed[-5] == {"role": "assistant", "content": None, "calls": ["q1"]}
        assert len(closed[-2]["content"]) <= 400
        for word in ("One more.", "And one.", "And the last."):
            await talk.say(word, tools=[GREP])
        old = [item["content"] for item in prompts(up)[-1] if item["role"] == "tool"]
        assert old == [old[0], long, "(Succeeded; not shown.)"]  # what a user says is no result that grows old


@both
async def test_a_paused_turn_is_one_turn_of_memory(stream: bool, tmp_path: Path) -> None:
    acts = [
        act for number in range(4) for act in (saying(None, asks(f"Which {number}?", ())), saying(f"Done {number}."))
    ]
    async with asking(tmp_path, *acts, DONE, agent={"memory": {"step": 1, "turns": 2}}) as (weir, up):
        talk = Talk(weir, stream=stream)
        for number in range(4):
            await talk.say(f"Request {number}")
            await talk.say(f"Answer {number}")
        await talk.say("Thanks.")
        told = prompts(up)[-1]
        behind = [item["content"] for item in told if item["role"] in ("user", "tool")]
        assert behind[1:] == ["Request 2", "Answer 2", "Request 3", "Answer 3", "Thanks."]
        for number in range(2):
            assert f"[turn {number + 1}] Request {number}" in behind[0]
            assert f"[turn {number + 1}] (asked: Which {number}?)\nAnswer {number}" in behind[0]


@both
async def test_a_question_that_expired_is_a_call_that_failed_to_memory(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, *[DONE] * 6, agent=MEMORY) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        later(weir, WEEK + 60)
        for word in ("Good morning.", "One.", "Two.", "Three.", "Four."):
            await talk.say(word)
        assert [item["content"] for item in prompts(up)[-1] if item["role"] == "tool"] == ["(Failed; not shown.)"]


async def test_an_explanation_names_the_tools_and_tells_an_answer_as_the_call_would(tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=False)
        await talk.say("Write to Ann.")
        body = {"model": "support", "messages": [*talk.messages, user("2")], "stream": False}
        headers = {**talk.headers, "content-type": "application/json"}
        asked = weir.client.post("/v1/weirgate/explain?body=true", content=json.dumps(body), headers=headers)
        found = (await asked).json()
        assert found["tools"]["own"] == ["ask_user", "load_skill", "read_tool_result", "request_approval"]
        assert found["turns"] == 1
        await talk.say("2")
        assert found["body"].encode() == up.ledger[-1].request.body


SCRIPTS = {
    "alone": (saying(None, asks()),),
    "with words": (ASKED,),
    "approval": (saying("Hm.", approves()),),
    "behind a round": (saying("Hm.", loads()), ASKED),
    "two at once": (saying(None, asks(), approves(id="q2")),),
    "nothing to ask": (saying("Hm.", tool_call("q1", "ask_user", {})), ASKED),
    "for ever": (saying("Hm.", tool_call("q1", "ask_user", {})),),
    "with a skill": (saying("Hm.", loads(), asks()),),
    "mixed": (saying("Hm.", asks(), FOUND),),
    "no id": (saying("Hm.", asks(id=""), loads(id="")),),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_stream_asks_what_the_json_answer_asks(name: str, tmp_path: Path) -> None:
    seen: list[tuple[object, ...]] = []
    for stream in (False, True):
        async with asking(tmp_path / str(stream), *SCRIPTS[name]) as (weir, up):
            talk = Talk(weir, stream=stream)
            answer = await talk.say("Write to Ann.", tools=[GREP])
            rows = await weir.rows()
            assert answer.usages[-1]["completion_tokens"] == sum(row.output for row in rows)
            await talk.say(*([tool("g1", "found")] if answer.message.get("tool_calls") else ["2"]), tools=[GREP])
            seen.append((*told(answer), prompts(up)))
    assert seen[0] == seen[1]


def told(answer: Answer) -> tuple[object, ...]:
    calls: list[Wire] = answer.message.get("tool_calls") or []
    return answer.text, answer.finish, [call["id"] for call in calls], pause_of(answer), len(answer.usages)


async def test_words_in_the_frame_that_ends_a_stream_come_before_the_question(tmp_path: Path) -> None:
    """Some servers put text, calls, the finish and the usage into one frame."""

    async def model(request: SeenRequest, reply: Script) -> None:
        whole = chat_reply("Let me see.", calls=(asks(),), usage=usage(40, 5))
        choice = whole["choices"][0]
        delta = {**choice["message"], "tool_calls": [{"index": 0, **choice["message"]["tool_calls"][0]}]}
        chunk = {**whole, "object": "chat.completion.chunk"}
        chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]
        await reply.sse([chunk])

    async with asking(tmp_path, model) as (weir, _):
        answer = await Talk(weir, stream=True).say("Write to Ann.")
        assert (answer.text, answer.finish) == (f"Let me see.\n\n{QUESTION}", "stop")
        assert [each["completion_tokens"] for each in answer.usages] == [5]
        assert answer.message == assistant(f"Let me see.\n\n{QUESTION}")
        assert "ask_user" not in shown(answer.message)
