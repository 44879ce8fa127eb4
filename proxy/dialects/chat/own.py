"""An answer that no model gave: one line of ours in the chat completions dialect, as a body or as a stream.

What became of a command stands in a `weirgate` member of the message (in a stream: of the delta), which clients that do
not know it leave aside.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

from proxy.core.command import Result
from proxy.core.steps import Call
from proxy.dialects.sse import DONE, frame

_NO_USAGE: Final = MappingProxyType({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
"""No model was asked for this answer; what a summary took stands in the usage rows."""


def own_answer(call: Call, result: Result, id: str, now: float) -> tuple[bytes, tuple[bytes, ...]]:
    """What the client of `call` gets: the body, or the frames of a stream with its end mark. `now` is unix time."""
    created = int(now)
    if call.stream:
        return b"", _frames(result, id, created, call.model, include_usage=call.include_usage)
    choice = {"index": 0, "message": _message(result), "finish_reason": "stop", "logprobs": None}
    whole = _object("chat.completion", id, created, call.model, choice) | {"usage": dict(_NO_USAGE)}
    return msgspec.json.encode(whole), ()


def _frames(result: Result, id: str, created: int, model: str, *, include_usage: bool) -> tuple[bytes, ...]:
    kind = "chat.completion.chunk"
    said = {"index": 0, "delta": _message(result), "finish_reason": None, "logprobs": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    chunks = [_object(kind, id, created, model, choice) for choice in (said, end)]
    if include_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append(_object(kind, id, created, model) | {"usage": dict(_NO_USAGE)})
    return (*(frame(msgspec.json.encode(chunk)) for chunk in chunks), frame(DONE))


def _message(result: Result) -> dict[str, object]:
    return {"role": "assistant", "content": result.line, "weirgate": {"compaction": msgspec.to_builtins(result)}}


def _object(kind: str, id: str, created: int, model: str, *choices: dict[str, object]) -> dict[str, object]:
    return {"id": id, "object": kind, "created": created, "model": model, "choices": list(choices)}
