"""The driver and tool rounds: rows, what leaves the client, a client that leaves, a store that is away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.core.errors import ClientLeft, StoreUnavailable
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.gateway import Answer as Served
from tests import edges
from tests.core.stacks import SHELF, TONE, an_agent
from tests.driving import House, closed_once
from tests.edges import Answer, Provider, events, stream, streamed, whole
from tests.replies import chat_chunks, tool_call, usage

LOAD = tool_call("w1", "load_skill", {"name": "tone"})
AGENT = an_agent(instructions="Help.")


def asked(**more: Any) -> Call:
    body = {"model": "support", "messages": [{"role": "user", "content": "Hello"}], **more}
    return decode_call(json.dumps(body).encode(), Caller(tenant="t", key="k"), read_message, {"x-session-id": "talk"})


def said(stream_: bool, text: str | None, *calls: dict[str, Any], counted: tuple[int, int] = (50, 5)) -> Answer:
    given = {"calls": calls, "usage": usage(*counted)}
    return streamed(text, **given) if stream_ else whole(text, **given)  # type: ignore[arg-type]


async def serve(house: House, provider: Provider, **more: Any) -> Served:
    return await house.serve(asked(**more), provider, agent=AGENT, shelf=SHELF)


def shown(house: House, served: Served) -> list[dict[str, Any]]:
    data = b"".join((*house.reader.read, *served.rest))
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("stream_", [False, True], ids=["json", "sse"])
async def test_each_round_is_a_call_with_a_row_of_its_own(house: House, stream_: bool) -> None:
    provider = Provider(said(stream_, "Hm.", LOAD), said(stream_, "Done.", counted=(80, 7)))
    served = await serve(house, provider, stream=stream_)
    first, second = await house.rows()
    assert [(row.purpose, row.input, row.output, row.status) for row in (first, second)] == [
        ("chat", 50, 5, "ok"),
        ("tool_round", 80, 7, "ok"),
    ]
    assert (first.parent, second.parent) == (None, first.id)
    assert first.request == second.request == "req_1"
    assert [row.finish for row in (first, second)] == ["tool_calls", "stop"]
    closed_once(house)
    assert served.outcome.reply is not None
    assert served.outcome.reply.message is not None
    assert served.outcome.reply.message.text == "Hm.\n\nDone."
    one, two = provider.bodies()
    assert two["messages"][: len(one["messages"])] == one["messages"]
    assert two["messages"][-1] == {"role": "tool", "tool_call_id": "w1", "content": TONE.text}
    assert two["tools"] == one["tools"]


async def test_words_of_a_round_go_out_while_the_next_is_still_to_come(house: House) -> None:
    """The client reads what was said before the tools are run, and the stream has one name."""
    seen: list[bytes] = []

    async def later(_: Any) -> Answer:
        seen.append(b"".join(house.reader.read))
        chunks = [{**chunk, "id": "another", "created": 9} for chunk in chat_chunks("Done.", usage=usage(80, 7))]
        return stream(events(*chunks, b"[DONE]"))

    served = await serve(
        house, Provider(said(True, "Hm.", LOAD), later), stream=True, stream_options={"include_usage": True}
    )
    assert b'"Hm."' in seen[0]
    frames = shown(house, served)
    assert {(frame["id"], frame["created"]) for frame in frames} == {("chatcmpl-scripted", 0)}
    assert frames[-1]["weirgate"] == {"rounds": 2, "usage": {"prompt_tokens": 130, "completion_tokens": 12}}


async def test_a_client_that_leaves_in_a_later_round_stops_it(house: House) -> None:
    async def goes() -> None:
        house.reader.fault = ClientLeft(said=True)

    answer = stream(events(*chat_chunks("Do", finish=None)), goes, events(*chat_chunks("ne.")[1:]))
    provider = Provider(said(True, "Hm.", LOAD), answer, said(True, "never"))
    with pytest.raises(ClientLeft):
        await serve(house, provider, stream=True)
    assert [(row.purpose, row.status) for row in await house.rows()] == [("chat", "ok"), ("tool_round", "cancelled")]
    closed_once(house)
    assert (answer.closed, len(provider.requests)) == (1, 2)
    assert house.store.verbs("remember") == []


async def test_a_client_that_leaves_between_two_rounds_asks_for_no_more(house: House) -> None:
    last = asyncio.Event()

    async def gone(_: Any) -> Answer:
        last.set()
        await asyncio.Event().wait()
        raise AssertionError

    provider = Provider(said(False, None, LOAD), gone)
    going = asyncio.create_task(serve(house, provider))
    async with asyncio.timeout(edges.BOUND):
        await last.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [(row.purpose, row.status) for row in await house.rows()] == [("chat", "ok"), ("tool_round", "cancelled")]
    closed_once(house)


async def test_an_answer_whose_rounds_cannot_be_remembered_is_not_given_out_as_whole(house: House) -> None:
    house.store.down = {"remember"}
    with pytest.raises(StoreUnavailable):
        await serve(house, Provider(said(True, "Hm.", LOAD), said(True, "Done.")), stream=True)
    data = b"".join(house.reader.read)
    assert b"Done." in data
    assert b'finish_reason": "stop' not in data
    assert b"[DONE]" not in data


async def test_where_nobody_is_named_a_load_lives_for_one_call(house: House) -> None:
    provider = Provider(said(False, "Hm.", LOAD), said(False, "Done."), said(False, "Bye."))
    body = {"model": "support", "messages": [{"role": "user", "content": "Hello"}]}
    for talk in (
        body["messages"],
        [*body["messages"], {"role": "assistant", "content": "Hm.\n\nDone."}, *body["messages"]],
    ):
        call = decode_call(
            json.dumps({**body, "messages": talk}).encode(), Caller(tenant="t", key="k"), read_message, {}
        )
        await house.serve(call, provider, agent=AGENT, shelf=SHELF)
    assert [message["role"] for message in provider.bodies()[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert all(what.hidden is None for what in house.store.verbs("remember"))
