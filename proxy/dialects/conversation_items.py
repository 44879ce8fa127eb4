"""Conversations and their items as OpenAI's Conversations API writes them.

Belongs here: the form of what is told, and the ids of items that stand for a part of a message. What that API has no
form for is named `weirgate.*`; each item says who hears it (`audience`) and of which part of the product it is
(`component`). Never: what the items are (`core.unfolded`), or reading any (`conversation_bodies`).
https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from proxy.core.conversation import (
    Approval,
    Block,
    Clarification,
    CompactionBlock,
    Media,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.unfolded import Part

Shape = dict[str, Any]

_STATUS: Final[Mapping[str, str]] = MappingProxyType({"cancelled": "incomplete"})
"""That API knows no answer that was stopped by its user."""
_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco", "compaction": "cmp"}
)


def conversation(id: str, created_at: float, metadata: Mapping[str, str]) -> Shape:
    return {"id": id, "object": "conversation", "created_at": int(created_at), "metadata": dict(metadata)}


def deleted(id: str) -> Shape:
    return {"id": id, "object": "conversation.deleted", "deleted": True}


def page(items: Sequence[Shape], *, more: bool) -> Shape:
    """A list, or a part of one. Clients read the ids at its ends as text, also where there is none."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": more,
    }


def items(id: str, status: str, turn: int, parts: Sequence[Part]) -> list[Shape]:
    """The items of one message, whose id one of them has: its words, where it has any."""
    made = [_written(block, part.role) for part in parts for block in _joined(part.blocks)]
    first = len(list(_joined(parts[0].blocks)))
    own = max(range(first), key=lambda place: (_own(made[place]), place))
    for place, item in enumerate(made):
        item["id"] = _named(item, id, None if place == own else place)
        item["turn"] = turn
        if item["type"] in _WITH_STATUS:
            # What was cut off was the words: a call in a message that is stored was whole.
            item["status"] = _STATUS.get(status, status) if place == own else "completed"
        if place != own and item["type"] == "message":
            item["phase"] = "commentary"
    return made


def _joined(blocks: Sequence[Block]) -> Iterator[Block | list[Text]]:
    """Blocks, neighbouring texts of one audience together; at least one."""
    words: list[Text] = []
    for block in blocks:
        if words and (type(block) is not Text or block.audience is not words[0].audience):
            yield words
            words = []
        if type(block) is Text:
            words.append(block)
        else:
            yield block
    if words or not blocks:
        yield words


def _written(block: Block | list[Text], role: str) -> Shape:
    return _message(role, block) if isinstance(block, list) else _item(block)


def _named(item: Shape, id: str, place: int | None) -> str:
    """The id of an item of the message `id`; without a `place`, of the one that stands for it."""
    name = id.partition("_")[2] if place is None else f"{id.partition('_')[2]}_{place}"
    if place is None and item["type"] == "message":
        return id
    return f"{_PREFIXES.get(item['type'], 'ask')}_{name}"


def _own(item: Shape) -> int:
    """How much an item stands for its message: the words that were shown, then whatever was, then anything."""
    return int(item["type"] == "message") + int(item["audience"] != "told")


def _message(role: str, words: Sequence[Text]) -> Shape:
    content = [part for text in words for part in _parts(role, text)]
    shape: Shape = {"id": "", "type": "message", "role": "unknown" if role == "function" else role, "content": content}
    if any(text.final for text in words):
        shape["phase"] = "final_answer"
    return shape | _heard(words[0] if words else Text(text=""))


def _parts(role: str, text: Text) -> list[Shape]:
    parts: list[Shape] = []
    if text.text or not text.media:
        said = {"type": "output_text", "annotations": []} if role == "assistant" else {"type": "input_text"}
        parts.append({**said, "text": text.text})
    parts.extend(map(_media, text.media))
    return parts


_WITH_STATUS: Final = ("message", "function_call", "function_call_output", "reasoning")


class _Url(msgspec.Struct):
    url: str = ""


class _Part(msgspec.Struct):
    image_url: _Url | str | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


def _media(media: Media) -> Shape:
    """A part as it arrived in the chat dialect, in the form of this one; of an unknown kind as it came."""
    try:
        part = msgspec.json.decode(media.wire, type=_Part)
    except msgspec.DecodeError:
        part = _Part()
    if part.image_url is not None:
        url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
        return {"type": "input_image", "detail": media.detail or "auto", "image_url": url, "file_id": None}
    if part.input_audio is not None:
        return {"type": "input_audio", "input_audio": part.input_audio}
    if part.file is not None:
        return {"type": "input_file", **part.file}
    return {"type": "input_file", "filename": media.digest}


def _item(block: Block) -> Shape:
    said: Shape
    if type(block) is Reasoning:
        content = [{"type": "reasoning_text", "text": block.text}]
        said = {"type": "reasoning", "summary": [], "content": content}
    elif type(block) is ToolCall:
        said = {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": block.arguments or "{}"}
    elif type(block) is ToolResult:
        output: Any = block.text
        if block.media:
            output = [{"type": "input_text", "text": block.text}] if block.text else []
            output += map(_media, block.media)
        said = {"type": "function_call_output", "call_id": block.call_id, "output": output}
    elif type(block) is Clarification:
        said = {"type": "weirgate.clarification_request", "call_id": block.id, "question": block.question}
        said["options"] = list(block.options)
    elif type(block) is Approval:
        said = {"type": "weirgate.approval_request", "call_id": block.id, "action": block.action}
        said["reason"] = block.reason
    else:
        assert type(block) is CompactionBlock
        # OpenAI's are sealed; ours say what they hold.
        said = {"type": "compaction", "encrypted_content": "", "notes": block.notes, "trigger": block.trigger}
    return {"id": "", **said, **_heard(block)}


def _heard(block: Block) -> Shape:
    return {"audience": block.audience.value, "component": block.component}
