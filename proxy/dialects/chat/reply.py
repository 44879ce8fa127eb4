"""A chat completions answer: JSON bodies and stream frames to the core's words, and our own frames and errors out.

Providers bend this shape in many ways; reading is lenient (what cannot be understood is forwarded as it is), writing is
strict. Usage shapes: OpenAI's, DeepSeek's prompt_cache_hit_tokens, Anthropic's cache_read_input_tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import Approval, Block, Clarification, Reasoning, Text, ToolCall
from proxy.core.errors import InvalidReply
from proxy.core.events import Broke, CallDelta, Counted, Ended, Event, Remark, Said
from proxy.core.steps import Reply
from proxy.core.usage import Usage
from proxy.dialects.chat.alike import Like, likeness
from proxy.dialects.chat.messages import LEGACY_CALL, written_call
from proxy.dialects.sse import DONE, SseEvent, frame, read_event

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_MOST: Final = 1 << 40
_CALL: Final = frozenset(("index", "id", "type", "function", "custom"))
_PLAIN: Final = frozenset(("prompt_tokens", "completion_tokens", "total_tokens"))
_LESSONS: Final = 3
"""How often in a row it is tried in vain to learn what the frames of a stream have in common."""
_FAILED: Final = re.compile("[45][0-9]{2}")

T = TypeVar("T")


class _Answer(msgspec.Struct, gc=False):
    """The members of an answer that are read, whatever their types; nothing is made of the others."""

    error: Any = None
    choices: Any = None
    usage: Any = None


class _Frame(_Answer, gc=False):
    """A frame's, which may state a status of its own for an error."""

    id: Any = None
    model: Any = None
    created: Any = None
    code: Any = None
    status: Any = None
    http_status_code: Any = None
    status_code: Any = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_FRAME: Final = msgspec.json.Decoder(_Frame)
_RAW: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_answer(body: bytes) -> Reply | Broke:
    """The answer in a JSON body sent with status 200, or the error object that came in its place. Raises InvalidReply
    where it has no finished choice."""
    answer = _decoded(_ANSWER, body)
    choices = answer.choices
    if answer.error and not choices:
        return Broke(status=200, body=body)
    if type(choices) is not list or not choices or type(choices[0]) is not dict:
        raise InvalidReply("The upstream's answer has no choices.")
    first: dict[str, Any] = choices[0]
    finish = first.get("finish_reason")
    said = first.get("message")
    made = None
    if type(said) is dict and len(choices) == 1:
        blocks = _said(said)
        made = message("assistant", blocks, sized=False) if blocks else None
    if finish is None and made is None:
        raise InvalidReply("The upstream's answer did not finish.")
    return Reply(message=made, finish=str(finish) if finish else None, usage=read_usage(answer.usage))


def is_error(body: bytes) -> bool:
    """Whether a body sent with status 200 is an error object instead of an answer."""
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(answer.error) and not answer.choices


def read_usage(value: Any) -> Usage | None:
    """The usage of an answer; None where there is none worth believing."""
    if type(value) is not dict:
        return None
    get = value.get
    total = _tokens(get("prompt_tokens")) or _tokens(get("input_tokens"))
    read, written = get("cache_read_input_tokens"), get("cache_creation_input_tokens")
    if "prompt_tokens" not in value:  # Anthropic counts what its cache had or took apart from the input
        total += _tokens(read) + _tokens(written)
    output = _tokens(get("completion_tokens")) or _tokens(get("output_tokens"))
    if not total and not output:
        return None
    if value.keys() <= _PLAIN:
        return Usage(input=total, output=output)
    inside = _details(get("prompt_tokens_details") or get("input_tokens_details"))
    outside = _details(get("completion_tokens_details") or get("output_tokens_details"))
    cached = inside.get("cached_tokens"), get("prompt_cache_hit_tokens"), read, get("cached_tokens")
    return Usage(
        input=total,
        output=output,
        cached=_first(cached),
        cache_write=_first((inside.get("cache_write_tokens"), written)),
        reasoning=_tokens(outside.get("reasoning_tokens")),
    )


class Frames:
    """The frames of one answer: reads the upstream's, writes ours in the same name. Of several rounds the first gives
    the name; frames of the later ones are told in it."""

    def __init__(self, model: str) -> None:
        self._id = ""
        self._created = 0
        self._model = model
        self._later = False
        self._role = ""
        self._like: Like | None = None
        self._lessons = _LESSONS

    def owe_role(self) -> None:
        """A frame was held back before any was shown: the first one shown must say whose message it begins."""
        self._role = "assistant"

    def next_round(self) -> None:
        """What is read from here on belongs to another call of the upstream."""
        self._later = bool(self._id)

    def read(self, event: SseEvent) -> Event:
        """Raises InvalidReply for data that is not JSON."""
        data, like = event.data, self._like
        if data is None:
            return Remark(raw=event.raw)
        if like is not None and (same := like.read(event.raw, data)) is not None:
            self._lessons = _LESSONS
            return same
        if data == DONE:
            return Ended()
        found = self._understood(event.raw, data)
        if self._lessons and type(found) is Said and (found.text or found.reasoning):
            self._lessons -= 1
            self._like = likeness(found, data, self._understood) or like
        return found

    def _understood(self, raw: bytes, data: bytes) -> Event:
        value = _decoded(_FRAME, data)
        choices = _choices(value.choices)
        if value.error and (not choices or choices[0].get("finish_reason") in (None, "error")):
            return Broke(status=_status(value), body=data)
        if not self._id and isinstance(value.id, str):
            self._id = value.id
            self._model = value.model or self._model
            self._created = value.created or 0
        usage = None if value.usage is None else read_usage(value.usage)
        if not choices:
            return Counted(raw=raw, usage=usage) if usage else Remark(raw=raw, told=value.usage is None)
        said = _increment(choices[0], 0, usage, raw)
        if len(choices) == 1:
            return said
        others = [_increment(choice, place, usage, raw) for place, choice in enumerate(choices) if place]
        blank = said.blank and all(other.blank for other in others)
        finishes = tuple((other.choice, other.finish) for other in others)
        return msgspec.structs.replace(said, blank=blank, others=finishes)

    def write(self, event: Event) -> bytes:
        """The bytes of an event: its own, or a frame of ours."""
        if type(event) is Said or type(event) is Counted:
            if event.raw is None or (self._role and type(event) is Said):
                return frame(self._made(event))
            return self._renamed(event.raw) if self._later else event.raw
        return event.raw if type(event) is Remark else b""

    def _renamed(self, raw: bytes) -> bytes:
        """A data frame of a later round as one of this answer; what else is in it survives."""
        body = _RAW.decode(read_event(raw).data or b"{}")
        return frame(msgspec.json.encode({**body, "id": self._id, "created": self._created, "model": self._model}))

    def _made(self, event: Said | Counted) -> bytes:
        body: dict[str, object] = {
            "id": self._id or "chatcmpl-weirgate",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }
        if isinstance(event, Counted):
            body["choices"] = []
            body["usage"] = _usage_body(event.usage)
            if event.rounds > 1:
                body["weirgate"] = rounds_body(event.rounds, event.read, event.usage.output)
            return msgspec.json.encode(body)
        delta: dict[str, object] = {}
        if self._role:
            delta["role"], self._role = self._role, ""
        if event.text:
            delta["content"] = event.text
        if event.pause is not None:
            delta["weirgate"] = pause_body(event.pause)
        if event.reasoning:
            delta["reasoning_content"] = event.reasoning
        if event.calls:
            delta["tool_calls"] = [_call_body(call) for call in event.calls]
        body["choices"] = [{"index": event.choice, "delta": delta, "finish_reason": event.finish, "logprobs": None}]
        return msgspec.json.encode(body)


def done_frame() -> bytes:
    return frame(DONE)


def _increment(choice: dict[str, Any], place: int, usage: Usage | None, raw: bytes) -> Said:
    delta = _details(choice.get("delta") or choice.get("message"))
    get = delta.get
    text = get("content")
    if not text or type(text) is not str:
        text = _text(text) or _text(get("refusal"))
    reasoning = ""
    if "reasoning_content" in delta or "reasoning" in delta:
        reasoning = _text(get("reasoning_content")) or _text(get("reasoning"))
    calls = _call_deltas(delta) if "tool_calls" in delta or "function_call" in delta else ()
    finish = choice.get("finish_reason")
    index = choice.get("index")
    said = text or reasoning or calls or finish
    return Said(
        raw=raw,
        choice=index if isinstance(index, int) else place,
        text=text,
        reasoning=reasoning,
        calls=calls,
        finish=str(finish) if finish else None,
        usage=usage,
        blank=not (said or get("audio") or get("images") or get("annotations")),
    )


def _call_deltas(delta: Mapping[str, Any]) -> tuple[CallDelta, ...]:
    listed, legacy = delta.get("tool_calls"), delta.get("function_call")
    if not listed and not legacy:
        return ()
    if not isinstance(listed, list):
        listed = []
    found = []
    for place, call in enumerate(listed):
        if not isinstance(call, dict):
            continue
        function = call.get("function") or call.get("custom")
        function = function if isinstance(function, dict) else {}
        index = call.get("index")
        found.append(
            CallDelta(
                index=index if isinstance(index, int) else place,
                id=_text(call.get("id")),
                name=_text(function.get("name")),
                arguments=_arguments(function.get("arguments", function.get("input"))),
                extra=_extra(call),
            )
        )
    if isinstance(legacy, dict) and not found:
        arguments = _arguments(legacy.get("arguments"))
        found.append(CallDelta(index=0, id=LEGACY_CALL, name=_text(legacy.get("name")), arguments=arguments))
    return tuple(found)


def _extra(call: dict[str, Any]) -> bytes:
    """The members of a call that only its provider knows, to be sent back with it."""
    if _CALL.issuperset(call):
        return b""
    return msgspec.json.encode({name: value for name, value in call.items() if name not in _CALL})


def _said(said: dict[str, Any]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if "reasoning_content" in said or "reasoning" in said:
        reasoning = _text(said.get("reasoning_content")) or _text(said.get("reasoning"))
        if reasoning:
            blocks.append(Reasoning(text=reasoning))
    text = _text(said.get("content")) or _text(said.get("refusal"))
    if text:
        blocks.append(Text(text=text))
    if "tool_calls" in said or "function_call" in said:
        for call in _call_deltas(said):
            blocks.append(ToolCall(id=call.id, name=call.name, arguments=call.arguments, extra=call.extra))
    return tuple(blocks)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if value is not None else ""


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise InvalidReply("The upstream's answer is not a JSON object.") from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The upstream's answer is not valid JSON.") from None


def _choices(value: Any) -> list[dict[str, Any]]:
    if type(value) is not list:
        return []
    if len(value) == 1 and type(value[0]) is dict:
        return value  # as in nearly all frames
    return [item for item in value if type(item) is dict]


def _status(value: _Frame) -> int:
    """The status an error inside a 200 stream states, 200 where it states none."""
    error = _details(value.error)
    inside = error.get("code"), error.get("status"), error.get("http_status_code"), error.get("status_code")
    for found in (*inside, value.code, value.status, value.http_status_code, value.status_code):
        if isinstance(found, int | str) and _FAILED.fullmatch(str(found)):
            return int(found)
    return 200


def _tokens(value: Any) -> int:
    """A number of tokens that can be believed, else 0."""
    if type(value) is not int and type(value) is not float:
        return 0
    return int(value) if 0 < value < _MOST else 0


def _first(values: tuple[Any, ...]) -> int:
    for value in values:
        if value is not None and (found := _tokens(value)):
            return found
    return 0


def _details(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict else _NONE


def joined_answer(
    body: bytes, reply: Reply, rounds: int, read: int, pause: Clarification | Approval | None = None
) -> bytes:
    """The JSON answer `body` of the last round with what all of them said in its one message, which asks the user what
    `pause` says."""
    answer = msgspec.json.decode(body, type=dict[str, Any])
    choice = answer["choices"][0]
    message = {**_details(choice.get("message")), "content": None}
    message.pop("tool_calls", None)
    if reply.message is not None:
        message["content"] = reply.message.text or None
        thoughts = "".join(block.text for block in reply.message.blocks if type(block) is Reasoning)
        if thoughts:
            name = "reasoning" if "reasoning" in message else "reasoning_content"
            message[name] = thoughts
        if reply.message.calls:
            message["tool_calls"] = list(map(written_call, reply.message.calls))
    elif not message.get("refusal"):
        message["content"] = ""
    if pause is not None:
        message["weirgate"] = pause_body(pause)
    answer["choices"] = [{**choice, "message": message, "finish_reason": reply.finish}]
    if reply.usage is not None and isinstance(answer.get("usage"), dict):
        usage = answer["usage"]
        total = {"completion_tokens": reply.usage.output, "total_tokens": reply.usage.input + reply.usage.output}
        outside = _details(usage.get("completion_tokens_details"))
        if outside or reply.usage.reasoning:
            outside = {**outside, "reasoning_tokens": reply.usage.reasoning}
            usage = {**usage, "completion_tokens_details": outside}
        answer["usage"] = {**usage, **total}
    if rounds > 1:
        answer["weirgate"] = rounds_body(rounds, read, reply.usage.output if reply.usage is not None else 0)
    return msgspec.json.encode(answer)


def pause_body(pause: Clarification | Approval) -> dict[str, object]:
    """What a text asks the user, for clients that show it in a way of their own."""
    if type(pause) is Clarification:
        asked = {"kind": "clarification_request", "question": pause.question, "options": pause.options}
        return {"pause": {"id": pause.id, **asked}}
    assert type(pause) is Approval
    return {"pause": {"id": pause.id, "kind": "approval_request", "action": pause.action, "reason": pause.reason}}


def rounds_body(rounds: int, read: int, written: int) -> dict[str, object]:
    """What an answer of several rounds took in all; its usage states the prompt of the last one."""
    return {"rounds": rounds, "usage": {"prompt_tokens": read, "completion_tokens": written}}


def _usage_body(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _call_body(call: CallDelta) -> dict[str, object]:
    body: dict[str, object] = {"index": call.index, **(msgspec.json.decode(call.extra) if call.extra else {})}
    function: dict[str, object] = {"arguments": call.arguments}
    if call.id:
        body.update(id=call.id, type="function")
    if call.name:
        function["name"] = call.name
    body["function"] = function
    return body
