"""The fakes other tests rest on: what they serve is what a real client reads, and they notice what they claim to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.fakes import Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks, chat_reply, in_turn, tool_call
from tests.strict import StrictUpstream, violation

CALL = tool_call("call_1", "look", {"at": "weir"})
ASKED = {"role": "user", "content": "hi"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": ""}


@asynccontextmanager
async def sdk(up: ScriptedUpstream) -> AsyncIterator[Any]:
    """The OpenAI client, as Any: the tests send what its types forbid."""
    async with openai.AsyncOpenAI(base_url=up.url, api_key="sk-test", max_retries=0, timeout=10) as client:
        yield client


async def test_the_openai_client_reads_a_strict_answer_with_honest_usage() -> None:
    strict = StrictUpstream(window=100, answer=lambda request: "word " * 8)
    async with ScriptedUpstream(strict) as up, sdk(up) as client:
        whole = await client.chat.completions.create(model="m", messages=[ASKED])
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("word " * 8, "stop")
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3 + 4 + 1, 10)
        stream = await client.chat.completions.create(
            model="m", messages=[ASKED], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "word " * 8
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert (strict.served, strict.overflows, strict.violations, strict.prompts) == (2, 0, [], [8, 8])


async def test_the_window_is_held_with_exact_numbers() -> None:
    strict = StrictUpstream(window=100, answer=lambda request: "x" * 4000)
    async with ScriptedUpstream(strict) as up, sdk(up) as client:
        with pytest.raises(openai.BadRequestError, match="resulted in 107 tokens") as over:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 400}])
        assert (over.value.code, over.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(openai.BadRequestError, match=r"requested 108 tokens \(8 in the messages, 100 in the comp"):
            await client.chat.completions.create(model="m", messages=[ASKED], max_tokens=100)
        full = await client.chat.completions.create(model="m", messages=[ASKED])
    assert (full.choices[0].finish_reason, full.usage.total_tokens) == ("length", 100)
    assert (strict.served, strict.overflows) == (1, 2)


async def test_a_scripted_tool_call_reaches_the_client_whole() -> None:
    strict = StrictUpstream(window=None, answer=lambda request: CALLED)
    async with ScriptedUpstream(strict) as up, sdk(up) as client:
        whole = await client.chat.completions.create(model="m", messages=[ASKED])
        assert whole.choices[0].message.tool_calls[0].function.arguments == '{"at": "weir"}'
        assert whole.choices[0].finish_reason == "tool_calls"
        stream = await client.chat.completions.create(model="m", messages=[ASKED], stream=True)
        pieces = [c.choices[0].delta.tool_calls[0] async for c in stream if c.choices[0].delta.tool_calls]
    assert (pieces[0].id, pieces[0].function.name) == ("call_1", "look")
    assert "".join(piece.function.arguments for piece in pieces) == '{"at": "weir"}'


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty or missing"),
        ([{"role": "robot", "content": "hi"}], "unknown role"),
        ([{"role": "user", "content": ""}], "empty content"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}]}], "empty content"),
        ([{"role": "assistant", "content": None}], "empty content"),
        ([ASKED, RESULT], "without its call"),
        ([ASKED, CALLED, RESULT, RESULT], "without its call"),
        ([ASKED, CALLED, ASKED], "have no result"),
        ([ASKED, CALLED], "have no result"),
        ([ASKED, CALLED, {"role": "tool", "tool_call_id": "call_1"}], "without content"),
        ([ASKED, {"role": "assistant", "tool_calls": [{"id": "call_1"}]}], "without id or name"),
    ],
)
async def test_a_malformed_prompt_is_refused_and_recorded(messages: list[Any], reason: str) -> None:
    strict = StrictUpstream(window=100)
    async with ScriptedUpstream(strict) as up, sdk(up) as client:
        with pytest.raises(openai.BadRequestError, match=reason):
            await client.chat.completions.create(model="m", messages=messages)
    assert (len(strict.violations), strict.served) == (1, 0)


def test_a_well_formed_tool_loop_is_no_violation() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [image]},
        CALLED,
        RESULT,
        CALLED,
        RESULT,
    ]
    assert violation({"messages": messages}) is None


async def test_behaviour_is_chosen_by_model_and_by_turn() -> None:
    async def first(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, chat_reply("first"))

    async def second(request: SeenRequest, reply: Script) -> None:
        await reply.sse(chat_chunks("second")) if request.stream else await reply.json(200, chat_reply("second"))

    async with ScriptedUpstream(by_model({"turns": in_turn(first, second)})) as up, sdk(up) as client:
        said = [await client.chat.completions.create(model="turns", messages=[ASKED]) for _ in range(3)]
        assert [one.choices[0].message.content for one in said] == ["first", "second", "second"]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=[ASKED])
        assert [entry.request.model for entry in up.ledger] == ["turns", "turns", "turns", "other"]
        assert all(entry.completed and entry.done.is_set() and not entry.gone.is_set() for entry in up.ledger)


async def test_the_ledger_sees_a_client_that_leaves() -> None:
    async def begin(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        await reply.event(chat_chunks("Hello")[0])
        await reply.hang()
        await reply.end()

    async with ScriptedUpstream(begin) as up, sdk(up) as client:
        stream = await client.chat.completions.create(model="m", messages=[ASKED], stream=True)
        await anext(aiter(stream))
        entry = await up.arrived()
        assert (up.busy, up.open) == (1, 1)
        await stream.close()
        await asyncio.wait_for(entry.gone.wait(), 5)
        await up.idle(connections=0)
        assert (entry.completed, entry.sent > 100) == (False, True)


async def test_an_error_in_a_script_fails_the_test() -> None:
    async def wrong(request: SeenRequest, reply: Script) -> None:
        assert request.model == "expected"

    with pytest.raises(AssertionError, match="expected"):
        async with ScriptedUpstream(wrong) as up, sdk(up) as client:
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(model="m", messages=[ASKED])


async def test_stopping_ends_a_handler_that_hangs() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang(asyncio.Event())

    async with ScriptedUpstream(hang) as up, sdk(up) as client:
        task = asyncio.create_task(client.chat.completions.create(model="m", messages=[ASKED]))
        await up.arrived()
    with pytest.raises(openai.APIConnectionError):
        await task
