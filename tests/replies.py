"""Builders of what a chat provider answers: objects, stream chunks, error bodies. Pure, and equal for equal input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def error_body(
    message: str, *, type: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def usage(prompt: int, completion: int, *, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def tool_call(id: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def chat_reply(
    text: str | None,
    *,
    calls: Iterable[dict[str, Any]] = (),
    usage: Mapping[str, Any] | None = None,
    model: str = "scripted",
    finish: str | None = None,
) -> dict[str, Any]:
    """A chat.completion object. `calls` are `tool_call`s; `finish` follows from them where it is not stated."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    tools = list(calls)
    if tools:
        message["tool_calls"] = tools
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish or ("tool_calls" if tools else "stop"),
        "logprobs": None,
    }
    reply = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
    return reply if usage is None else {**reply, "usage": dict(usage)}


def chat_chunks(
    text: str | None,
    *,
    calls: Iterable[dict[str, Any]] = (),
    usage: Mapping[str, Any] | None = None,
    model: str = "scripted",
    finish: str | None = "",
    size: int = 8,
) -> list[dict[str, Any]]:
    """chat.completion.chunk objects: the role, the text in pieces of `size` characters, each call in two pieces, the
    finish (None leaves it out, "" means the usual one) and, where stated, the usage in a chunk without choices."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": (text or "")[at : at + size]} for at in range(0, len(text or ""), size)]
    tools = list(calls)
    for index, call in enumerate(tools):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    frame = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        reason = finish or ("tool_calls" if tools else "stop")
        chunks.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if usage is not None:
        chunks.append({**frame, "choices": [], "usage": dict(usage)})
    return chunks
