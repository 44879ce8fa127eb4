"""An agent that asks its user before a scripted model, and a client that talks to it: for the scenarios of pauses."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, tool_call, usage
from tests.scenarios.acts import Act
from tests.scenarios.gate import Answer, Gate, Wire, gate, prompts, user
from tests.scenarios.skilled import settings, support
from tests.strict import StrictUpstream

TOOLS = ["load_skill", "read_tool_result", "ask_user", "request_approval"]
AGENT = {"model": "fast", "instructions": "Help.", "skills": ["tone"], "memory": False, "tools": TOOLS}
QUESTION = "Which Ann?\n\n1. Ann Berg\n2. Ann Cole"
WEEK = 604_800


def asks(question: str = "Which Ann?", options: tuple[str, ...] = ("Ann Berg", "Ann Cole"), id: str = "q1") -> Wire:
    return tool_call(id, "ask_user", {"question": question, "options": list(options)})


def approves(action: str = "Send the letter", reason: str = "It cannot be called back", id: str = "q1") -> Wire:
    return tool_call(id, "request_approval", {"action": action, "reason": reason})


@asynccontextmanager
async def asking(
    folder: Path, *acts: Act, agent: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Gate, ScriptedUpstream]]:
    """An agent with all tools and without memory; `agent` are further keys of it."""
    async with support(folder, *acts, agents={"support": {**AGENT, **(agent or {})}}, **more) as (weir, up):
        yield weir, up


@asynccontextmanager
async def before(up: ScriptedUpstream, folder: Path, **more: Any) -> AsyncIterator[Gate]:
    """The same agent before a model that others talk to as well."""
    async with gate(up.url, **(settings(folder) | {"agents": {"support": AGENT}} | more)) as weir:
        yield weir


def honest(text: str | None, *calls: Wire) -> Act:
    """Says this, and how large the prompt was."""

    async def act(request: SeenRequest, reply: Script) -> None:
        counted = usage(StrictUpstream(window=None).measure(request.json), 5)
        if request.stream:
            await reply.sse(chat_chunks(text, calls=calls, usage=counted))
        else:
            await reply.json(200, chat_reply(text, calls=calls, usage=counted))

    return act


class Talk:
    """One conversation as a client holds it: what was said, and sent again with each request."""

    def __init__(self, weir: Gate, *, stream: bool, label: str | None = "talk") -> None:
        self.weir = weir
        self.stream = stream
        self.headers = {} if label is None else {"x-session-id": label}
        self.messages: list[Wire] = []

    async def say(self, *said: str | Wire, **more: Any) -> Answer:
        """Say something, and take in the answer."""
        self.messages += [user(each) if isinstance(each, str) else each for each in said]
        if self.stream:
            more = {"stream_options": {"include_usage": True}, **more}
        answer = await self.weir.ask(self.messages, model="support", headers=self.headers, stream=self.stream, **more)
        if answer.status == 200:
            assert answer.done is self.stream
            self.messages.append(answer.message)
        return answer


def pause_of(answer: Answer) -> Wire | None:
    """The structured data of a pause, wherever the answer has it."""
    if not answer.streamed:
        found = answer.json["choices"][0]["message"].get("weirgate")
    else:
        deltas = [choice.get("delta") or {} for frame in answer.frames for choice in frame["choices"]]
        found = next((delta["weirgate"] for delta in deltas if "weirgate" in delta), None)
    return None if found is None else found["pause"]


def later(weir: Gate, seconds: float) -> None:
    """Calls that begin from now on begin `seconds` later."""
    assert weir.app._gateway is not None
    weir.app._gateway.snapshots._wall = lambda: time.time() + seconds


def last(up: ScriptedUpstream, count: int) -> list[Wire]:
    """The last messages of the last prompt, by what a model reads: role, words, the ids of calls."""
    return [told(message) for message in prompts(up)[-1][-count:]]


def told(message: Wire) -> Wire:
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    result = message.get("tool_call_id")
    kept: Wire = {"role": message["role"], "content": message.get("content")}
    return kept | ({"calls": calls} if calls else {}) | ({"answers": result} if result else {})


def extends(up: ScriptedUpstream) -> bool:
    """Whether each prompt begins with the one before it (DESIGN 5)."""
    seen = prompts(up)
    return all(second[: len(first)] == first for first, second in pairwise(seen))
