"""An agent with a skill before a scripted model: what every scenario of the gateway's own tools is played on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, tool_call, usage
from tests.scenarios.acts import Act, balanced
from tests.scenarios.gate import Gate, Wire, gate
from tests.strict import violation

GREP: Wire = {"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}
FOUND = tool_call("g1", "grep", {"for": "x"})
TONE = "Write short sentences."


def loads(name: str = "tone", id: str = "w1") -> Wire:
    return tool_call(id, "load_skill", {"name": name})


def saying(text: str | None, *calls: Wire) -> Act:
    async def act(request: SeenRequest, reply: Script) -> None:
        counted = usage(40 + 10 * len(request.messages), 5)
        if request.stream:
            await reply.sse(chat_chunks(text, calls=calls, usage=counted))
        else:
            await reply.json(200, chat_reply(text, calls=calls, usage=counted))

    return act


def scripted(*acts: Act) -> Act:
    """A model that does `acts` in turn, the last one for ever, and refuses what no provider would take."""
    waiting = list(acts)

    async def model(request: SeenRequest, reply: Script) -> None:
        assert violation(request.json) is None
        await (waiting.pop(0) if len(waiting) > 1 else waiting[0])(request, reply)

    return model


def settings(folder: Path) -> dict[str, Any]:
    """Those of an agent with a skill, whose file is put into `folder`."""
    place = folder / "skills" / "shared" / "tone"
    place.mkdir(parents=True, exist_ok=True)
    (place / "SKILL.md").write_text(f"---\nname: tone\ndescription: Before a letter.\n---\n{TONE}\n")
    return {
        "models": {"fast": {"upstream": "main", "model": "scripted"}},
        "agents": {"support": {"model": "fast", "instructions": "Help.", "skills": ["tone"], "memory": False}},
        "skills__folders": [str(folder / "skills")],
    }


@asynccontextmanager
async def support(folder: Path, *acts: Act, **more: Any) -> AsyncIterator[tuple[Gate, ScriptedUpstream]]:
    """That agent before a scripted model. The books balance at the end."""
    async with ScriptedUpstream(scripted(*acts)) as up, gate(up.url, **(settings(folder) | more)) as weir:
        yield weir, up
        await balanced(weir, up)
