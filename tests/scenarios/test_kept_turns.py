"""Conversations that the gateway keeps, through the whole application: a client sends only what is new.

What the model reads is what it would read of a client who keeps the conversation himself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.store.owned import Item, Owned
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, tool_call
from tests.scenarios.acts import Act, balanced, refusing
from tests.scenarios.gate import Answer, Gate, Wire, assistant, gate, prompts, system, tool, user
from tests.scenarios.skilled import saying
from tests.scenarios.speaking import held

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
ID = "conv_1"
GREP: Wire = {"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}


@asynccontextmanager
async def keeping(*acts: Act, user: str | None = None, **more: Any) -> AsyncIterator[tuple[Gate, ScriptedUpstream]]:
    """A gateway with one empty conversation; its model does `acts` in turn, the last one for ever."""
    waiting = list(acts)

    async def model(request: SeenRequest, reply: Script) -> None:
        await (waiting.pop(0) if len(waiting) > 1 else waiting[0])(request, reply)

    async with ScriptedUpstream(model) as up, gate(up.url, **more) as weir:
        assert weir.store.conversations is not None
        owned = Owned(id=ID, created_at=1.0, last_used=1.0, end_user=user)
        await weir.store.conversations.create("local", "open", owned)
        yield weir, up
        await balanced(weir, up)


async def say(weir: Gate, *messages: Wire, **more: Any) -> Answer:
    return await weir.ask(messages, conversation=ID, **more)


async def path(weir: Gate) -> tuple[Item, ...]:
    assert weir.store.conversations is not None
    return await weir.store.conversations.path("local", "open", ID)


@both
async def test_a_client_that_sends_only_what_is_new_has_its_whole_conversation_told(stream: bool) -> None:
    async with keeping(saying("Red."), saying("Blue.")) as (weir, up):
        first = await say(weir, system("Be short."), user("One colour?"), stream=stream)
        second = await say(weir, user("Another?"), stream=stream)
        assert (first.text, second.text) == ("Red.", "Blue.")
        assert second.conversation == ID
        assert prompts(up)[1] == [system("Be short."), user("One colour?"), assistant("Red."), user("Another?")]
        assert "conversation" not in up.ledger[1].request.json
        assert [(item.role, item.turn) for item in await path(weir)] == [
            ("system", 1),
            ("user", 1),
            ("assistant", 1),
            ("user", 2),
            ("assistant", 2),
        ]
        assert [item.final for item in await path(weir)] == [False, False, True, False, True]


async def test_a_tool_loop_of_the_client_goes_on_with_its_results() -> None:
    calls = tool_call("g1", "grep", {"for": "x"})
    async with keeping(saying(None, calls), saying("Found it.")) as (weir, up):
        asked = await say(weir, user("Look for x."), tools=[GREP])
        assert asked.finish == "tool_calls"
        answered = await say(weir, tool("g1", "x stands in a.py"), tools=[GREP])
        assert answered.text == "Found it."
        assert prompts(up)[1][-2:] == [assistant(None, calls), tool("g1", "x stands in a.py")]
        assert {item.turn for item in await path(weir)} == {1}


async def test_what_the_system_says_is_stored_when_it_changes_and_told_in_its_latest_form() -> None:
    async with keeping(saying("Yes.")) as (weir, up):
        for word in ("Be short.", "Be short.", "Be long."):
            await say(weir, system(word), user("Well?"))
        assert [item.role for item in await path(weir)].count("system") == 2
        assert prompts(up)[2][0] == system("Be long.")
        assert sum(message["role"] == "system" for message in prompts(up)[2]) == 1


async def test_a_turn_that_failed_keeps_what_the_user_said_and_is_asked_again_without_doubling_it() -> None:
    async with keeping(refusing(500), saying("Well.")) as (weir, up):
        assert (await say(weir, user("Hello"))).status == 502
        assert [item.role for item in await path(weir)] == ["user"]
        assert (await say(weir, user("Hello"))).text == "Well."
        assert [item.role for item in await path(weir)] == ["user", "assistant"]
        assert prompts(up)[1] == [user("Hello")]


async def test_a_request_that_the_provider_refuses_leaves_nothing() -> None:
    async with keeping(refusing(400), saying("Well.")) as (weir, _up):
        assert (await say(weir, user("A bad picture"))).status == 400
        assert await path(weir) == ()
        assert (await say(weir, user("Hello"))).text == "Well."


async def test_a_conversation_of_another_user_or_key_or_none_is_missing() -> None:
    async with keeping(saying("Well."), user="ann") as (weir, _up):
        assert (await say(weir, user("Hi"), user="bob")).code == "conversation_not_found"
        assert (await weir.ask([user("Hi")], conversation="conv_2")).code == "conversation_not_found"
        assert (await say(weir, user("Hi"), user="ann")).status == 200
        assert (await say(weir, user("Hi"))).status == 200
        rows = await weir.rows()
        assert {row.end_user for row in rows} == {"ann"}
        assert {row.conversation for row in rows} == {ID}


@both
async def test_a_second_message_while_a_turn_runs_is_told_that_it_is_busy(stream: bool) -> None:
    slow, going, release = held(saying("Well."))
    async with asyncio.timeout(20), keeping(slow) as (weir, _up):
        first = asyncio.create_task(say(weir, user("Hello"), stream=stream))
        await going.wait()
        busy = await say(weir, user("Are you there?"))
        assert (busy.status, busy.code) == (409, "conversation_busy")
        release.set()
        assert (await first).text == "Well."
        assert (await say(weir, user("Are you there?"))).status == 200


async def test_a_message_interjected_into_a_turn_of_one_call_becomes_a_turn_of_its_own() -> None:
    going, release = asyncio.Event(), asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        going.set()
        await release.wait()
        await saying(f"{len(request.messages)} messages.")(request, reply)

    async with asyncio.timeout(20), keeping(slow) as (weir, _up):
        first = asyncio.create_task(say(weir, user("Hello")))
        await going.wait()
        second = asyncio.create_task(say(weir, user("Wait"), headers={"x-weirgate-interject": "true"}))
        release.set()
        assert (await first).text == "1 messages."
        assert (await second).text == "3 messages."
        assert [item.role for item in await path(weir)] == ["user", "assistant", "user", "assistant"]


async def test_the_id_may_stand_in_a_header_and_two_that_differ_are_refused() -> None:
    async with keeping(saying("Well.")) as (weir, _up):
        named = {"x-weirgate-conversation-id": ID}
        assert (await weir.ask([user("Hello")], headers=named)).status == 200
        assert (await weir.ask([user("Hello")], headers=named, conversation={"id": ID})).status == 200
        assert (await weir.ask([user("Hello")], headers=named, conversation="conv_2")).status == 400
        assert (await weir.ask([user("Hello")], conversation=7)).status == 400
        assert (await say(weir, assistant("I said."), user("No"))).code == "invalid_messages"
        assert (await say(weir, system("Be short."))).code == "invalid_messages"


@both
async def test_a_client_that_leaves_does_not_stop_the_turn(stream: bool) -> None:
    slow, going, release = held(saying("Well."))
    async with asyncio.timeout(20), keeping(slow) as (weir, _up):
        first = asyncio.create_task(say(weir, user("Hello"), stream=stream))
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        assert (await say(weir, user("Still there?"))).code == "conversation_busy"
        release.set()
        rows = await weir.rows()
        assert [row.status for row in rows] == ["ok"]
        assert [item.role for item in await path(weir)] == ["user", "assistant"]
        assert (await say(weir, user("And now?"))).text == "Well."


async def test_a_turn_that_is_stopped_leaves_what_it_wrote() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("The beginning")[:2]:
            await reply.event(chunk)
        await reply.hang()

    async with asyncio.timeout(20), keeping(endless, saying("Well.")) as (weir, _up):
        heard, first = hearing(weir, {"model": "scripted", "messages": [user("Hello")], "conversation": ID})
        await heard.wait()
        assert (await weir.client.post(f"/v1/conversations/{ID}/cancel")).status_code == 200
        assert b"turn_cancelled" in await first
        last = (await path(weir))[-1]
        assert (last.role, last.status, last.final) == ("assistant", "cancelled", False)
        assert b"The" in last.wire
        assert (await say(weir, user("Go on"))).text == "Well."


def hearing(weir: Gate, body: Wire) -> tuple[asyncio.Event, asyncio.Task[bytes]]:
    """A streamed call whose first content is told at once, and all that was streamed."""
    heard, sent = asyncio.Event(), [json.dumps({**body, "stream": True}).encode()]
    got: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.request", "body": sent.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves here")

    async def send(message: Any) -> None:
        got.append(message.get("body", b""))
        if b'"content":"The' in got[-1].replace(b": ", b":"):
            heard.set()

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": headers,
    }

    async def run() -> bytes:
        await weir.app(scope, receive, send)
        return b"".join(got)

    return heard, asyncio.create_task(run())


@both
async def test_a_call_that_is_sent_again_under_its_key_is_answered_once(stream: bool) -> None:
    async with keeping(saying("Well."), saying("Other.")) as (weir, up):
        named = {"idempotency-key": "k1"}
        first = await say(weir, user("Hello"), headers=named, stream=stream)
        again = await say(weir, user("Hello"), headers=named, stream=stream)
        assert (first.text, again.text, again.finish) == ("Well.", "Well.", "stop")
        assert len(up.ledger) == 1
        assert (await say(weir, user("Hello"))).text == "Other."
        assert [item.role for item in await path(weir)] == ["user", "assistant"] * 2


@both
async def test_what_is_said_while_the_model_works_is_told_before_its_next_call(stream: bool, tmp_path: Path) -> None:
    (tmp_path / "shared" / "tone").mkdir(parents=True)
    (tmp_path / "shared" / "tone" / "SKILL.md").write_text("---\nname: tone\ndescription: Letters.\n---\nBe short.\n")
    load = tool_call("w1", "load_skill", {"name": "tone"})

    slow, going, release = held(saying("Let me look.", load))
    agents = {"writer": {"model": "*", "skills": ["tone"]}}
    models = {"*": {"upstream": "main"}}
    told: dict[str, Any] = {"models": models, "agents": agents, "skills__folders": [str(tmp_path)]}
    async with asyncio.timeout(20), keeping(slow, saying("In blue, then."), saying("More."), **told) as (weir, up):
        first = asyncio.create_task(say(weir, user("Write it"), stream=stream, model="writer"))
        await going.wait()
        named = {"x-weirgate-interject": "true"}
        second = asyncio.create_task(say(weir, user("In blue!"), headers=named, stream=stream, model="writer"))
        await interjected(weir)
        release.set()
        assert (await first).text == "Let me look.\n\nIn blue, then."
        assert (await second).text == "Let me look.\n\nIn blue, then."
        now = prompts(up)[1]
        assert [message["role"] for message in now] == ["system", "user", "assistant", "tool", "user"]
        assert now[2]["tool_calls"] == [load]
        assert now[4] == user("In blue!")
        assert [item.role for item in await path(weir)] == ["user", "user", "assistant"]
        await say(weir, user("More"), model="writer")
        later = prompts(up)[2]
        assert [message["role"] for message in later] == [
            "system",
            "user",
            "assistant",
            "tool",
            "user",
            "assistant",
            "user",
        ]
        assert later[5] == assistant("In blue, then.")


async def interjected(weir: Gate) -> None:
    """Until something was left for the running turn."""
    while not await weir.read("SELECT run FROM interjection"):
        await asyncio.sleep(0)
