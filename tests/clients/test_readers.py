"""Every reader reads the same answer, passes its tools on and gives results back: what tests of the gateway rest on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, tool_call, usage

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": None, "tool_calls": [tool_call("call_0", "weather", {"city": "Oslo"})]},
    {"role": "tool", "tool_call_id": "call_0", "content": "snow"},
    {"role": "assistant", "content": "Snow."},
    {"role": "user", "content": "And in Paris and Rome?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALLS = [tool_call("call_1", "weather", {"city": "Paris"}), tool_call("call_2", "weather", {"city": "Rome"})]

pytestmark = pytest.mark.timeout(120)


async def two_calls_then_a_text(asked: SeenRequest, reply: Script) -> None:
    after = asked.messages[-1]["role"] == "tool"
    text, calls = ("Sunny in both.", []) if after else ("Let me see.", CALLS)
    if asked.stream:
        await reply.sse(chat_chunks(text, calls=calls, usage=usage(31, 7)))
    else:
        await reply.json(200, chat_reply(text, calls=calls, usage=usage(31, 7)))


async def refused(asked: SeenRequest, reply: Script) -> None:
    await reply.json(404, {"error": {"message": "No.", "type": "invalid_request_error", "code": "skill_not_found"}})


@pytest.fixture(params=programs.READERS)
def client(request: pytest.FixtureRequest) -> str:
    programs.need(request.param)
    return str(request.param)


def told(message: dict[str, Any]) -> tuple[str, Any]:
    """A message of the wire without what each client writes its own way: no text, parts, blanks in arguments."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = {call["id"]: json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()}
    return message["role"], (text, calls, message.get("tool_call_id"))


async def test_a_reader_reads_text_calls_and_usage_and_answers_the_calls(client: str, tmp_path: Path) -> None:
    extra = {"seed": 5, "reasoning_effort": "high"}
    async with ScriptedUpstream(two_calls_then_a_text) as up:
        tasks = [
            {
                "base_url": up.url, "model": "scripted", "messages": MESSAGES, "stream": stream, "usage": True,
                "tools": TOOLS, "extra": extra, "key": "key-of-acme", "results": {"weather": "sun"},
            }
            for stream in (False, True)
        ]  # fmt: skip
        answers = await asyncio.to_thread(programs.ask, client, tasks, tmp_path)
    assert len(up.ledger) == 4
    for first in answers:
        second = first["next"]
        assert [(call["id"], call["name"], call["arguments"]) for call in first["calls"]] == [
            ("call_1", "weather", {"city": "Paris"}),
            ("call_2", "weather", {"city": "Rome"}),
        ]
        assert (first["text"], first["finish"]) == ("Let me see.", ["tool_calls"])
        assert (second["text"], second["finish"], second["calls"]) == ("Sunny in both.", ["stop"], [])
        assert "next" not in second
        for answer in (first, second):
            assert (answer["messages"], answer["tokens"], answer["error"]) == (1, [31, 7], None)
            assert len(answer["ids"]) == 1 or client == "langchain"
    for at, entry in enumerate(up.ledger):
        request = entry.request
        assert request.stream is (at >= 2)
        assert request.headers["authorization"] == "Bearer key-of-acme"
        assert (request.json["seed"], request.json["reasoning_effort"]) == (5, "high")
        assert [tool["function"]["name"] for tool in request.json["tools"]] == ["weather"]
        history = [told(message) for message in request.messages]
        assert history[: len(MESSAGES)] == [told(message) for message in MESSAGES]
        assert (
            history[len(MESSAGES) :]
            == [
                ("assistant", ("Let me see.", {"call_1": {"city": "Paris"}, "call_2": {"city": "Rome"}}, None)),
                ("tool", ("sun", {}, "call_1")),
                ("tool", ("sun", {}, "call_2")),
            ][: 3 * (at % 2)]
        )


async def test_a_reader_says_what_an_error_was(client: str, tmp_path: Path) -> None:
    async with ScriptedUpstream(refused) as up:
        tasks = [{"base_url": up.url, "model": "scripted", "stream": stream} for stream in (False, True)]
        answers = await asyncio.to_thread(programs.ask, client, tasks, tmp_path)
    for answer in answers:
        assert (answer["error"]["status"], answer["error"]["code"]) == (404, "skill_not_found")
        assert (answer["text"], answer["calls"], answer["finish"]) == ("", [], [])
