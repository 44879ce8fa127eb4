"""A provider with a window, that refuses what is malformed or too long and answers the rest as it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes import Script, SeenRequest, chat_chunks, chat_reply, error_body, usage
from tests.scenarios.gate import Wire
from tests.scenarios.shape import Size, faults, quarter, size

Says = Callable[[SeenRequest], Wire]
"""The assistant message that answers a request."""


class Windowed:
    """A handler for `ScriptedUpstream`. `bodies` are the accepted requests, `refused` the sizes of those over
    `window`, `malformed` what was wrong with others."""

    def __init__(self, window: int, says: Says, *, measure: Size = quarter, alternate: bool = False) -> None:
        self.window = window
        self.says = says
        self.measure = measure
        self.alternate = alternate
        self.bodies: list[bytes] = []
        self.refused: list[int] = []
        self.malformed: list[list[str]] = []

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        wrong = faults(request.messages, alternate=self.alternate)
        if wrong:
            self.malformed.append(wrong)
            await reply.json(400, error_body(f"Invalid messages: {wrong[0]}"))
            return
        used = size(request.json, self.measure)
        if used > self.window:
            self.refused.append(used)
            await reply.json(400, too_long(self.window, used))
            return
        self.bodies.append(request.body)
        await answer(request, reply, self.says(request), used)


async def answer(request: SeenRequest, reply: Script, said: Wire, used: int, finish: str | None = None) -> None:
    """`said` as a body or a stream, with its usage, as an OpenAI-shaped provider sends it."""
    told = usage(used, max(1, len(str(said)) // 4))
    calls = said.get("tool_calls") or ()
    if not request.stream:
        await reply.json(200, chat_reply(said.get("content"), calls=calls, usage=told, finish=finish))
        return
    asked = (request.json.get("stream_options") or {}).get("include_usage")
    text = said.get("content")
    await reply.sse(
        chat_chunks(
            text,
            calls=calls,
            usage=told if asked else None,
            finish=finish or "",
            size=max(8, len(text or "") // 3),
        )
    )


def too_long(window: int, used: int) -> dict[str, Any]:
    """OpenAI's refusal, with its numbers."""
    said = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {used} tokens."
        " Please reduce the length of the messages."
    )
    return error_body(said, param="messages", code="context_length_exceeded")
