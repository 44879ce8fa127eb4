"""A provider that checks everything: a window with exact numbers, and the shape of a conversation.

    strict = StrictUpstream(window=8192, answer=lambda request: "Done.")
    async with ScriptedUpstream(strict) as up: ...
    assert strict.violations == []          # malformed prompts that reached it, each with its reason
    strict.overflows, strict.served         # prompts over the window (rejected), answers given

It refuses as OpenAI does: 400 `context_length_exceeded` with the numbers, 400 for orphan tool results, unanswered
calls, empty contents, unknown roles. What it answers carries honest usage in the same measure. No clock, no chance:
equal requests get equal answers, if `answer` is a function.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes import Script, SeenRequest, chat_chunks, chat_reply, error_body, usage

Answer = Callable[[SeenRequest], str | Mapping[str, Any]]
"""The text of the reply, or an assistant message with `tool_calls` (made by `fakes.tool_call`) and `content`."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
PER_MESSAGE = 4
PER_PROMPT = 3
PER_IMAGE = 85


def quarter(text: str) -> int:
    """A token for each four characters, rounded up."""
    return math.ceil(len(text) / 4)


class StrictUpstream:
    """A handler for `ScriptedUpstream`. `count` measures a text in tokens; `window` bounds prompt and output together
    (None: no bound). Without a stated limit the output ends where the window does, with finish "length"."""

    def __init__(
        self, *, window: int | None, answer: Answer = lambda request: "Done.", count: Callable[[str], int] = quarter
    ) -> None:
        self.window = window
        self.answer = answer
        self.count = count
        self.violations: list[str] = []
        self.overflows = 0
        self.served = 0
        self.prompts: list[int] = []
        """Tokens of every prompt that was well-formed, in order of arrival, rejected ones too."""

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        fault = violation(request.json)
        if fault is not None:
            self.violations.append(fault)
            await reply.json(400, error_body(fault, param="messages"))
            return
        prompt = self.measure(request.json)
        self.prompts.append(prompt)
        refusal = self._refusal(prompt, _output_limit(request.json))
        if refusal is not None:
            self.overflows += 1
            await reply.json(400, error_body(refusal, param="messages", code="context_length_exceeded"))
            return
        self.served += 1
        await self._serve(request, reply, prompt)

    def measure(self, body: Mapping[str, Any]) -> int:
        """Tokens of a request's prompt: messages, calls, tool definitions."""
        total = PER_PROMPT + sum(self._measure_message(message) for message in body["messages"])
        if body.get("tools"):
            total += self.count(json.dumps(body["tools"], separators=(",", ":"), ensure_ascii=False))
        return total

    def _measure_message(self, message: Mapping[str, Any]) -> int:
        total = PER_MESSAGE
        for part in _parts(message.get("content")):
            total += self.count(part["text"]) if part.get("type") == "text" else PER_IMAGE
        for call in message.get("tool_calls") or ():
            total += self.count(call["function"]["name"]) + self.count(call["function"]["arguments"])
        return total

    def _refusal(self, prompt: int, output: int | None) -> str | None:
        window = self.window
        if window is None:
            return None
        limit = f"This model's maximum context length is {window} tokens. However, "
        if prompt >= window:
            return f"{limit}your messages resulted in {prompt} tokens. Please reduce the length of the messages."
        if output is not None and prompt + output > window:
            return (
                f"{limit}you requested {prompt + output} tokens ({prompt} in the messages, {output} in the "
                "completion). Please reduce the length of the messages or completion."
            )
        return None

    async def _serve(self, request: SeenRequest, reply: Script, prompt: int) -> None:
        said = self.answer(request)
        text, calls = (said, []) if isinstance(said, str) else (said.get("content"), list(said.get("tool_calls") or ()))
        finish = None
        room = min(_output_limit(request.json) or math.inf, math.inf if self.window is None else self.window - prompt)
        if text is not None and self.count(text) > room:
            text, calls, finish = self._shorten(text, int(room)), [], "length"
        spent = self.count(text or "")
        spent += sum(self.count(call["function"]["name"] + call["function"]["arguments"]) for call in calls)
        counted = usage(prompt, spent)
        if not request.stream:
            await reply.json(200, chat_reply(text, calls=calls, usage=counted, model=request.model, finish=finish))
            return
        asked = (request.json.get("stream_options") or {}).get("include_usage")
        chunks = chat_chunks(
            text, calls=calls, usage=counted if asked else None, model=request.model, finish=finish or "", size=32
        )
        await reply.sse(chunks)

    def _shorten(self, text: str, room: int) -> str:
        least, most = 0, len(text)
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if self.count(text[:middle]) <= room else (least, middle - 1)
        return text[:least]


def violation(body: Mapping[str, Any]) -> str | None:
    """What is wrong with the shape of a chat request, None if nothing is."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: an empty or missing list"
    waiting: list[str | None] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"{where}: unknown role"
        if message["role"] in ("tool", "function"):
            # A call of the old function API has no id, and is answered by no tool.
            call = message.get("tool_call_id") if message["role"] == "tool" else None
            if call not in waiting:
                return f"{where}: a tool result without its call before it"
            waiting.remove(call)
        elif waiting:
            return f"{where}: {len(waiting)} tool calls before it have no result"
        fault = _content_fault(message)
        if fault is not None:
            return f"{where}: {fault}"
        if message["role"] == "assistant":
            waiting = [call.get("id") for call in message.get("tool_calls") or ()]
            waiting += [None] if message.get("function_call") else []
    if waiting:
        return f"messages: {len(waiting)} tool calls at the end have no result"
    return None


def _content_fault(message: Mapping[str, Any]) -> str | None:
    """An empty result is one (tools do print nothing); everything else has to say something."""
    content = message.get("content")
    role = message["role"]
    if content is not None and not isinstance(content, str | list):
        return "content is neither text nor parts"
    if isinstance(content, list) and not all(isinstance(part, dict) and "type" in part for part in content):
        return "a content part without a type"
    if role == "assistant" and (message.get("tool_calls") or message.get("function_call")):
        return _calls_fault(message.get("tool_calls") or ())
    if role in ("tool", "function"):
        return "a tool result without content" if content is None else None
    said = [part for part in _parts(content) if part.get("type") != "text" or str(part.get("text", "")).strip()]
    return None if said else "empty content"


def _calls_fault(calls: Any) -> str | None:
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not call.get("id") or not function.get("name"):
            return "a tool call without id or name"
        if not isinstance(function.get("arguments"), str):
            return "a tool call without arguments"
    return None


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [] if content is None else [{"type": "text", "text": content}]


def _output_limit(body: Mapping[str, Any]) -> int | None:
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return limit if isinstance(limit, int) else None
