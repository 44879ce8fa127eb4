"""A chat completions answer: JSON bodies and stream frames to the core's words, and our own frames and errors out.

Providers bend this shape in many ways; reading is lenient (what cannot be understood is forwarded as it is), writing is
strict. Usage shapes: OpenAI's, DeepSeek's prompt_cache_hit_tokens, Anthropic's cache_read_input_tokens.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import Block, Reasoning, Text, ToolCall
from proxy.core.errors import InvalidReply
from proxy.core.events import Broke, CallDelta, Counted, Ended, Event, Remark, Said
from proxy.core.steps import Reply
from proxy.core.usage import Usage
from proxy.dialects.chat.messages import LEGACY_CALL
from proxy.dialects.sse import DONE, SseEvent, frame

_ANY: Final = msgspec.json.Decoder()
_MOST: Final = 1 << 40
_FAILED: Final = re.compile("[45][0-9]{2}")


def read_reply(body: bytes) -> Reply:
    """The answer in a JSON body. Raises InvalidReply where it has no finished choice."""
    value = _object(body)
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise InvalidReply("The upstream's answer has no choices.")
    first: dict[str, Any] = choices[0]
    finish = first.get("finish_reason")
    said = first.get("message")
    made = None
    if isinstance(said, dict) and len(choices) == 1:
        blocks = _said(said)
        made = message("assistant", blocks) if blocks else None
    if finish is None and made is None:
        raise InvalidReply("The upstream's answer did not finish.")
    return Reply(message=made, finish=str(finish) if finish else None, usage=read_usage(value.get("usage")))


def is_error(body: bytes) -> bool:
    """Whether a body sent with status 200 is an error object instead of an answer."""
    try:
        value = _ANY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("error")) and not value.get("choices")


def read_usage(value: Any) -> Usage | None:
    """The usage of an answer; None where there is none worth believing."""
    if not isinstance(value, dict):
        return None
    inside = value.get("prompt_tokens_details") or value.get("input_tokens_details") or {}
    outside = value.get("completion_tokens_details") or value.get("output_tokens_details") or {}
    inside = inside if isinstance(inside, dict) else {}
    outside = outside if isinstance(outside, dict) else {}
    total = _number(value, "prompt_tokens", "input_tokens")
    if "prompt_tokens" not in value:  # Anthropic counts what its cache had or took apart from the input
        total += _number(value, "cache_read_input_tokens") + _number(value, "cache_creation_input_tokens")
    usage = Usage(
        input=total,
        output=_number(value, "completion_tokens", "output_tokens"),
        cached=_number(inside, "cached_tokens")
        or _number(value, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens"),
        cache_write=_number(inside, "cache_write_tokens") or _number(value, "cache_creation_input_tokens"),
        reasoning=_number(outside, "reasoning_tokens"),
    )
    return usage if usage.input or usage.output else None


class Frames:
    """The frames of one answer: reads the upstream's, writes ours in the same name."""

    def __init__(self, model: str) -> None:
        self._id = ""
        self._created = 0
        self._model = model

    def read(self, event: SseEvent) -> Event:
        """Raises InvalidReply for data that is not JSON."""
        if event.data is None:
            return Remark(raw=event.raw)
        if event.data == DONE:
            return Ended()
        value = _object(event.data)
        if value.get("error") and not _choices(value):
            return Broke(status=_status(value), body=event.data)
        if not self._id and isinstance(value.get("id"), str):
            self._id = value["id"]
            self._model = value.get("model") or self._model
            self._created = value.get("created") or 0
        choices = _choices(value)
        usage = read_usage(value.get("usage"))
        if not choices:
            return Counted(raw=event.raw, usage=usage) if usage else Remark(raw=event.raw)
        if value.get("error") and choices[0].get("finish_reason") in (None, "error"):
            return Broke(status=_status(value), body=event.data)
        said = _increment(choices[0], 0, usage, event.raw)
        if len(choices) == 1:
            return said
        others = [_increment(choice, place, usage, event.raw) for place, choice in enumerate(choices) if place]
        blank = said.blank and all(other.blank for other in others)
        finishes = tuple((other.choice, other.finish) for other in others)
        return msgspec.structs.replace(said, blank=blank, others=finishes)

    def write(self, event: Event) -> bytes:
        """The bytes of an event: its own, or a frame of ours."""
        if type(event) is Said or type(event) is Counted:
            return frame(self._made(event)) if event.raw is None else event.raw
        return event.raw if type(event) is Remark else b""

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
            return msgspec.json.encode(body)
        delta: dict[str, object] = {"content": event.text} if event.text else {}
        if event.reasoning:
            delta["reasoning_content"] = event.reasoning
        if event.calls:
            delta["tool_calls"] = [_call_body(call) for call in event.calls]
        body["choices"] = [{"index": event.choice, "delta": delta, "finish_reason": event.finish, "logprobs": None}]
        return msgspec.json.encode(body)


def done_frame() -> bytes:
    return frame(DONE)


def _increment(choice: dict[str, Any], place: int, usage: Usage | None, raw: bytes) -> Said:
    delta = choice.get("delta") or choice.get("message") or {}
    if not isinstance(delta, dict):
        delta = {}
    text = _text(delta.get("content")) or _text(delta.get("refusal"))
    reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    calls = _call_deltas(delta)
    finish = choice.get("finish_reason")
    index = choice.get("index")
    extra = bool(delta.get("audio") or delta.get("images") or delta.get("annotations"))
    return Said(
        raw=raw,
        choice=index if isinstance(index, int) else place,
        text=text,
        reasoning=reasoning,
        calls=calls,
        finish=str(finish) if finish else None,
        usage=usage,
        blank=not (text or reasoning or calls or finish or extra),
    )


def _call_deltas(delta: dict[str, Any]) -> tuple[CallDelta, ...]:
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
            )
        )
    if isinstance(legacy, dict) and not found:
        arguments = _arguments(legacy.get("arguments"))
        found.append(CallDelta(index=0, id=LEGACY_CALL, name=_text(legacy.get("name")), arguments=arguments))
    return tuple(found)


def _said(said: dict[str, Any]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    reasoning = _text(said.get("reasoning_content")) or _text(said.get("reasoning"))
    if reasoning:
        blocks.append(Reasoning(text=reasoning))
    text = _text(said.get("content")) or _text(said.get("refusal"))
    if text:
        blocks.append(Text(text=text))
    blocks.extend(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in _call_deltas(said))
    return tuple(blocks)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if value is not None else ""


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = _ANY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The upstream's answer is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidReply("The upstream's answer is not a JSON object.")
    return value


def _choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    return [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []


def _status(value: dict[str, Any]) -> int:
    """The status an error inside a 200 stream states, 200 where it states none."""
    error = value.get("error")
    for holder in (error, value):
        if isinstance(holder, dict):
            for name in ("code", "status", "http_status_code", "status_code"):
                found = holder.get(name)
                if isinstance(found, int | str) and _FAILED.fullmatch(str(found)):
                    return int(found)
    return 200


def _number(value: dict[str, Any], *names: str) -> int:
    for name in names:
        found = value.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < _MOST:
            return int(found)
    return 0


def _usage_body(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _call_body(call: CallDelta) -> dict[str, object]:
    body: dict[str, object] = {"index": call.index}
    function: dict[str, object] = {"arguments": call.arguments}
    if call.id:
        body.update(id=call.id, type="function")
    if call.name:
        function["name"] = call.name
    body["function"] = function
    return body
