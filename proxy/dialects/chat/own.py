"""An answer that no model gives now: one message in the chat completions dialect, as a body or as a stream.

What became of a command stands in a `weirgate` member of the message (in a stream: of the delta), which clients that do
not know it leave aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.core.command import Result
from proxy.core.steps import Call
from proxy.dialects.sse import DONE, frame

NO_USAGE: Final = MappingProxyType({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
"""No model was asked for this answer; what a summary took stands in the usage rows."""


def own_answer(call: Call, result: Result, id: str, now: float) -> tuple[bytes, tuple[bytes, ...]]:
    """What the client of `call` gets: the body, or the frames of a stream with its end mark. `now` is unix time."""
    created = int(now)
    message = {"role": "assistant", "content": result.line, "weirgate": {"compaction": msgspec.to_builtins(result)}}
    if call.stream:
        return b"", chunked(message, "stop", id, created, call.model, include_usage=call.include_usage)
    return msgspec.json.encode(completion(message, "stop", id, created, call.model) | {"usage": dict(NO_USAGE)}), ()


def completion(message: Mapping[str, object], finish: str, id: str, created: int, model: str) -> dict[str, object]:
    """A completion of one choice, its usage left out."""
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return _object("chat.completion", id, created, model, choice)


def chunked(
    message: Mapping[str, object], finish: str, id: str, created: int, model: str, *, include_usage: bool
) -> tuple[bytes, ...]:
    """The frames of a stream that says `message` at once, the end mark last."""
    kind = "chat.completion.chunk"
    said = {"index": 0, "delta": message, "finish_reason": None, "logprobs": None}
    end = {"index": 0, "delta": {}, "finish_reason": finish, "logprobs": None}
    chunks = [_object(kind, id, created, model, choice) for choice in (said, end)]
    if include_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append(_object(kind, id, created, model) | {"usage": dict(NO_USAGE)})
    return (*(frame(msgspec.json.encode(chunk)) for chunk in chunks), frame(DONE))


def _object(kind: str, id: str, created: int, model: str, *choices: dict[str, object]) -> dict[str, object]:
    return {"id": id, "object": kind, "created": created, "model": model, "choices": list(choices)}
