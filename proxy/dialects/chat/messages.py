"""One chat message: wire JSON to a `Message` and back.

A message that came over the wire keeps its bytes; only messages that the gateway made or changed are written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import (
    Approval,
    Block,
    Clarification,
    CompactionBlock,
    Media,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.dialects.images import media_of
from proxy.dialects.strict import check_value, fail, without_lone_surrogates

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "function",
}
LEGACY_CALL: Final = "function_call"
"""The id that calls and results of the old function API are paired by; it had none."""


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None
    input: str | None = None


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None
    custom: _Function | None = None


class _Wire(msgspec.Struct):
    role: str
    content: str | list[msgspec.Raw] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _Url(msgspec.Struct):
    url: str = ""
    detail: str | None = None


class _Data(msgspec.Struct):
    data: str = ""
    file_data: str = ""
    file_id: str = ""


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None
    input_audio: _Data | None = None
    file: _Data | None = None


_DECODER: Final = msgspec.json.Decoder(_Wire)
_PART: Final = msgspec.json.Decoder(_Part)


def read_message(wire: bytes, index: int, depth: int = 64) -> Message:
    """Decode one message. Raises Malformed naming `messages[index]`."""
    param = f"messages[{index}]"
    check_value(wire, depth, param)
    try:
        decoded = _DECODER.decode(wire)
    except msgspec.ValidationError as error:
        raise fail(f"A message member has the wrong type: {_where(error)}.", param, "invalid_type") from None
    except (msgspec.DecodeError, RecursionError):
        shadow = without_lone_surrogates(wire)
        if shadow is wire:
            raise fail("A message is not valid JSON.", param) from None
        return msgspec.structs.replace(read_message(shadow, index, depth), wire=wire)
    role = _ROLES.get(decoded.role)
    if role is None:
        raise fail(
            "Unknown role: system, developer, user, assistant and tool are known.", f"{param}.role", "invalid_messages"
        )
    return message(role, _blocks(decoded, role, param), wire=wire, name=decoded.name)


def _blocks(wire: _Wire, role: Role, param: str) -> tuple[Block, ...]:
    content = _content(wire.content, param)
    if role == "tool" or role == "function":
        if role == "tool" and not wire.tool_call_id:
            raise fail("A tool message needs tool_call_id.", f"{param}.tool_call_id", "missing_required_parameter")
        text = "\n".join(block.text for block in content if block.text)
        media = tuple(media for block in content for media in block.media)
        return (ToolResult(call_id=wire.tool_call_id or LEGACY_CALL, text=text, media=media),)
    blocks: list[Block] = []
    if wire.reasoning_content:
        blocks.append(Reasoning(text=wire.reasoning_content))
    blocks.extend(content)
    if wire.refusal and not content:
        blocks.append(Text(text=wire.refusal))
    for number, call in enumerate(wire.tool_calls or ()):
        blocks.append(_call(call, f"{param}.tool_calls[{number}]"))
    if wire.function_call is not None:
        blocks.append(_function(wire.function_call, LEGACY_CALL))
    return tuple(blocks)


def _call(call: _Call, param: str) -> ToolCall:
    if call.custom is not None:
        return ToolCall(id=call.id or "", name=call.custom.name, arguments=call.custom.input or "")
    if call.function is None or not call.function.name:
        raise fail("A tool call needs a function with a name.", param, "missing_required_parameter")
    return _function(call.function, call.id or "")


def _function(function: _Function, id: str) -> ToolCall:
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=id, name=function.name, arguments=arguments or "")


def _content(content: str | list[msgspec.Raw] | None, param: str) -> tuple[Text, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(text=content),)
    texts: list[Text] = []
    for number, raw in enumerate(content):
        try:
            part = _PART.decode(raw)
        except msgspec.ValidationError as error:
            place = f"{param}.content[{number}]"
            raise fail(f"A content part has the wrong type: {_where(error)}.", place, "invalid_type") from None
        media = _media(part, bytes(raw))
        if media is not None:
            texts.append(Text(text="", media=(media,)))
        else:
            texts.append(Text(text=part.text or part.refusal or ""))
    return tuple(texts)


def _media(part: _Part, raw: bytes) -> Media | None:
    if part.image_url is not None:
        url = _Url(url=part.image_url) if isinstance(part.image_url, str) else part.image_url
        return msgspec.structs.replace(media_of(url.url), detail=url.detail, wire=raw)
    if part.input_audio is not None:
        return msgspec.structs.replace(
            media_of(f"data:audio/any;base64,{part.input_audio.data}"), kind="audio", wire=raw
        )
    if part.file is not None:
        content = part.file.file_data or part.file.file_id
        return msgspec.structs.replace(media_of(content), kind="file", wire=raw)
    if part.text is None and part.refusal is None and part.type != "text":
        return msgspec.structs.replace(media_of(raw.decode("utf-8", "replace")), kind="file", wire=raw)
    return None


def write_message(item: Message) -> bytes:
    """The wire JSON of a message: its own bytes, or written from its blocks."""
    if item.wire is not None:
        return item.wire
    wire: dict[str, object] = {"role": item.role}
    if item.results:
        result = item.results[0]
        if item.role != "function":
            wire["tool_call_id"] = result.call_id
        wire["content"] = _written((Text(text=result.text, media=result.media),))
    else:
        texts = tuple(block for block in map(_as_text, item.blocks) if block is not None)
        wire["content"] = _written(texts) if texts or not item.calls else None
        if item.calls:
            wire["tool_calls"] = list(map(written_call, item.calls))
        reasoning = "".join(block.text for block in item.blocks if type(block) is Reasoning)
        if reasoning:
            wire["reasoning_content"] = reasoning
    if item.name and item.role != "tool":
        wire["name"] = item.name
    return msgspec.json.encode(wire)


def written_call(call: ToolCall) -> dict[str, object]:
    """A tool call, with what its provider wants back with it."""
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    extra: dict[str, object] = msgspec.json.decode(call.extra) if call.extra else {}
    return {"id": call.id, "type": "function", "function": function, **extra}


def _as_text(block: Block) -> Text | None:
    if type(block) is Text:
        return block
    if type(block) is Clarification:
        return Text(text=block.question)
    if type(block) is Approval:
        return Text(text=f"{block.action}\n{block.reason}")
    if type(block) is CompactionBlock:
        return Text(text=block.notes)
    return None


def _written(texts: tuple[Text, ...]) -> str | list[object]:
    if all(not text.media for text in texts):
        return "\n\n".join(text.text for text in texts)
    parts: list[object] = []
    for text in texts:
        if text.text:
            parts.append({"type": "text", "text": text.text})
        parts.extend(msgspec.Raw(media.wire) for media in text.media)
    return parts


def _where(error: msgspec.ValidationError) -> str:
    """msgspec names types and the path, never content."""
    return str(error)[:120]
