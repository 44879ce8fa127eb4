"""One conversation driven in two ways: by a client that keeps it, and by one that sends only what is new.

A recording becomes a script of turns' steps: what the client sends next, and what the model then says. Two gateways
that share their secret, each with an empty store, are driven with it; what the provider got of either is the same,
byte for byte. Left out of a recording is what a conversation that the gateway keeps cannot say: an answer to nothing, a
second answer in a row, a result of a call that is not open, and system messages in the middle (those state anew what
stands in front).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from proxy.store.owned import Owned
from tests import engine
from tests.data import Conversation
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.scenarios.gate import Gate, Wire, gate, shown
from tests.strict import quarter, violation

MODEL = "clerk"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What the client sends, and what the model says to it, round by round (nothing where the gateway answers)."""

    new: tuple[Wire, ...]
    answers: tuple[Wire, ...]


def script(row: Conversation) -> Iterator[Step]:
    """The recording `row` as steps."""
    new: list[Wire] = []
    open: set[str] = set()
    begun = False
    for item in row.messages:
        role = item["role"]
        if role == "assistant":
            if any(each["role"] in ("user", "tool") for each in new):
                answer = written(item)
                yield Step(new=tuple(new), answers=(answer,))
                open = {call["id"] for call in answer.get("tool_calls") or ()}
                new, begun = [], True
        elif role == "tool":
            if item.get("tool_call_id") in open and not any(each["role"] == "user" for each in new):
                open.discard(item["tool_call_id"])
                new.append(item)
        elif role == "user" or (role in ("system", "developer") and not begun):
            new.append(item)


def written(item: Wire) -> Wire:
    """What was said, as the gateway writes messages: so does the client that keeps the conversation."""
    calls = []
    for call in item.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or "{}"
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        function = {"name": call["function"]["name"], "arguments": text}
        calls.append({"id": call["id"], "type": "function", "function": function})
    text = shown({"content": item.get("content")})
    answer: Wire = {"role": "assistant", "content": text or (None if calls else "(nothing)")}
    return {**answer, "tool_calls": calls} if calls else answer


class Provider:
    """Says what it is to say, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Wire] = []
        self.bodies: list[bytes] = []
        self.violations: list[str] = []

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        self.bodies.append(request.body)
        fault = violation(request.json)
        self.violations += [fault] if fault is not None else []
        said = self.answers.pop(0)
        counted = usage(sum(quarter(shown(item)) for item in request.messages), quarter(shown(said)))
        calls = said.get("tool_calls") or []
        await reply.json(200, chat_reply(said["content"], calls=calls, usage=counted))


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one drive: what the client has of the conversation, the bodies that the provider got, and what the
    client was told of the notes in the last one."""

    history: tuple[Wire, ...]
    bodies: tuple[bytes, ...]
    compaction: str


async def keeps(weir: Gate, up: Provider, id: str, steps: Iterable[Step]) -> AsyncIterator[Driven]:
    """A client that sends its whole history."""
    history: list[Wire] = []
    for step in steps:
        yield await _said(weir, up, step, history, [*history, *step.new], {"x-session-id": id})


async def sends_what_is_new(weir: Gate, up: Provider, id: str, steps: Iterable[Step]) -> AsyncIterator[Driven]:
    """A client of a conversation that the gateway keeps."""
    assert weir.store.conversations is not None
    await weir.store.conversations.create("local", "open", Owned(id=id, created_at=1.0, last_used=1.0))
    history: list[Wire] = []
    for step in steps:
        yield await _said(weir, up, step, history, step.new, {"x-weirgate-conversation-id": id})


async def _said(
    weir: Gate, up: Provider, step: Step, history: list[Wire], messages: Sequence[Wire], headers: dict[str, str]
) -> Driven:
    """One request; `history` grows by what is new and by the answer."""
    up.answers = list(step.answers)
    before = len(up.bodies)
    answer = await weir.send(msgspec.json.encode({"model": MODEL, "messages": messages}), headers=headers)
    assert answer.status == 200 and not up.answers, answer.body
    history += step.new
    driven = Driven(history=tuple(history), bodies=tuple(up.bodies[before:]), compaction=answer.compaction)
    history.append(written(answer.message))
    return driven


@asynccontextmanager
async def two_gateways(folder: Path, **more: Any) -> AsyncIterator[tuple[tuple[Gate, Provider], tuple[Gate, Provider]]]:
    """Two gateways with one secret and nothing else, each with its provider."""
    async with gate("http://127.0.0.1:1/v1", file=folder / "one.db"):
        pass
    await engine.copy(folder / "one.db", folder / "two.db")
    one, two = Provider(), Provider()
    async with (
        ScriptedUpstream(one) as first,
        ScriptedUpstream(two) as second,
        gate(first.url, file=folder / "one.db", folder=folder, **more) as client_owned,
        gate(second.url, file=folder / "two.db", folder=folder, **more) as gateway_owned,
    ):
        yield (client_owned, one), (gateway_owned, two)
