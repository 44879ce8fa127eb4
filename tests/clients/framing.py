"""One reply of a model as servers frame it: a JSON body, or a stream in each of the manners that real ones have.

The manners differ in what the first frame holds, in how many pieces a call comes, and in where the usage stands. Pure:
what is said, and when, is the business of `loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Wire = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What one reply says: `calls` as on the wire, `usage` as OpenAI counts it."""

    text: str | None
    calls: tuple[Wire, ...]
    finish: str
    usage: Wire
    reasoning: str = ""


def body(told: Told, about: Mapping[str, Any]) -> Wire:
    """The reply as one JSON body; `about` are its id, time and model."""
    message: Wire = {"role": "assistant", "content": told.text}
    if told.reasoning:
        message["reasoning_content"] = told.reasoning
    if told.calls:
        message["tool_calls"] = list(told.calls)
    choice = {"index": 0, "message": message, "finish_reason": told.finish, "logprobs": None}
    return {**about, "object": "chat.completion", "choices": [choice], "usage": told.usage}


def frames(told: Told, about: Mapping[str, Any], manner: str, *, usage: bool) -> list[Wire]:
    """The reply as frames in one of the `MANNERS`; without `usage` as a server sends them to whoever did not ask."""
    frame = {**about, "object": "chat.completion.chunk"}
    return [{**frame, **made} for made in (MANNERS | LOOSE)[manner](told) if usage or not _counts(made)]


def _counts(made: Wire) -> bool:
    return not made["choices"]


def _choice(delta: Wire, finish: str | None = None, **beside: Any) -> Wire:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **beside}


def _whole_calls(told: Told) -> list[Wire]:
    return [{"index": index, **call} for index, call in enumerate(told.calls)]


def _texts(told: Told) -> list[Wire]:
    thought = [{"reasoning_content": told.reasoning}] if told.reasoning else []
    text = told.text or ""
    return [*thought, *({"content": text[at : at + 5]} for at in range(0, len(text), 5))]


def _pieces(told: Told) -> list[Wire]:
    """Each call as OpenAI streams it: its name first, then its arguments in two pieces."""
    made: list[Wire] = []
    for index, call in enumerate(told.calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        middle = len(arguments) // 2
        made.append({"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]})
        made += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in (arguments[:middle], arguments[middle:])
        ]
    return made


def _alone(told: Told) -> Wire:
    return {"choices": [], "usage": told.usage}


def _openai(told: Told) -> list[Wire]:
    """The role with an empty content, everything in pieces, `usage: null` in each frame, the usage alone."""
    role = {"role": "assistant", "content": None if told.calls and not told.text else "", "refusal": None}
    deltas = [role, *_texts(told), *_pieces(told)]
    return [*(_choice(delta, usage=None) for delta in deltas), _choice({}, told.finish, usage=None), _alone(told)]


def _bare_role(told: Told) -> list[Wire]:
    """The role and nothing else (vLLM), calls whole, the usage alone."""
    calls = [{"tool_calls": [call]} for call in _whole_calls(told)]
    deltas = [{"role": "assistant"}, *_texts(told), *calls]
    return [*map(_choice, deltas), _choice({}, told.finish), _alone(told)]


def _at_once(told: Told) -> list[Wire]:
    """Role, text and all calls in the first frame (Gemini's OpenAI endpoint, SGLang), the usage alone."""
    delta: Wire = {"role": "assistant", "content": told.text}
    if told.reasoning:
        delta["reasoning_content"] = told.reasoning
    if told.calls:
        delta["tool_calls"] = _whole_calls(told)
    return [_choice(delta), _choice({}, told.finish), _alone(told)]


def _mistral(told: Told) -> list[Wire]:
    """All calls, the finish and the usage in one last frame."""
    last: Wire = {"content": ""}
    if told.calls:
        last["tool_calls"] = _whole_calls(told)
    first = _choice({"role": "assistant", "content": ""})
    return [first, *map(_choice, _texts(told)), _choice(last, told.finish, usage=told.usage)]


def _with_finish(told: Told) -> list[Wire]:
    """The role in every frame, calls in pieces, the usage in the frame of the finish (DeepSeek, Fireworks)."""
    deltas = [{"role": "assistant", **delta} for delta in [{"content": ""}, *_texts(told), *_pieces(told)]]
    return [*map(_choice, deltas), _choice({}, told.finish, usage=told.usage)]


def _late_name(told: Told) -> list[Wire]:
    """A call's id before its name."""
    made: list[Wire] = [{"role": "assistant", "content": ""}, *_texts(told)]
    for index, call in enumerate(told.calls):
        made.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function"}]})
        made.append({"tool_calls": [{"index": index, "function": call["function"]}]})
    return [*map(_choice, made), _choice({}, told.finish), _alone(told)]


def _no_index(told: Told) -> list[Wire]:
    """Calls whole, each in a frame of its own without an index (Gemini)."""
    deltas = [{"role": "assistant", **delta} for delta in [*_texts(told), *({"tool_calls": [c]} for c in told.calls)]]
    return [*map(_choice, deltas), _choice({"role": "assistant"}, told.finish, usage=told.usage)]


Manner = Callable[[Told], list[Wire]]

MANNERS: dict[str, Manner] = {
    "openai": _openai,
    "bare role": _bare_role,
    "at once": _at_once,
    "mistral": _mistral,
    "with finish": _with_finish,
    "late name": _late_name,
}

LOOSE: dict[str, Manner] = {"no index": _no_index}
"""Manners of servers for which `upstreams.X.normalise` is made."""
