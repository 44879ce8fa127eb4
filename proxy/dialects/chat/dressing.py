"""The layers as wire JSON: one leading system message, a text beside a user's words, our tools behind the client's.

What a client wrote stays as it wrote it: its parts with their cache marks, its role, members we do not know. Only where
everything is plain text does our text stand in one string with it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from proxy.core.agent import Spec
from proxy.core.chain import message
from proxy.core.conversation import Block, Message, Text
from proxy.core.measure import estimate
from proxy.core.stack import Offer
from proxy.core.steps import Call
from proxy.dialects.chat.messages import write_message
from proxy.dialects.members import elements
from proxy.dialects.strict import without_lone_surrogates

_BREAK: Final = "\n\n"
_OURS: Final = b'"weirgate"'
_FREE: Final = (b'"auto"', b"null")
_PLAIN: Final = (b'{"type":"text"}', b"null")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Function(msgspec.Struct):
    name: Any = None


class _Tool(msgspec.Struct):
    function: _Function | None = None
    custom: _Function | None = None
    name: Any = None


_TOOL: Final = msgspec.json.Decoder(_Tool)


def leading(before: str, clients: tuple[Message, ...], after: str) -> Message:
    """One system message of our text, the client's leading ones and our text; in the role of the client's first."""
    each = [_fields(item) for item in clients] or [{"role": msgspec.Raw(b'"system"')}]
    first = each[0]
    for more in each[1:]:  # a cache mark may stand on any of them; a name is one message's
        first |= {name: value for name, value in more.items() if name not in first and name != "name"}
    contents = [_content(item) for item in clients]
    blocks: list[Block] = [Text(text=before)] if before else []
    for item in clients:
        blocks.extend(item.blocks)
    if after:
        blocks.append(Text(text=after))
    role = clients[0].role if clients else "system"
    return message(role, tuple(blocks), wire=_written(first, [before, *contents, after]))


def beside(text: str, item: Message) -> Message:
    """`item` with `text` in front of what it says."""
    wire = _written(_fields(item), [text, _content(item)])
    return message(item.role, (Text(text=text), *item.blocks), wire=wire, name=item.name)


def plain(item: Message) -> Message:
    """`item` without our own member, which clients send back with the message that it came in: providers refuse what
    they do not know."""
    if item.wire is None or _OURS not in item.wire:
        return item
    fields = _fields(item)
    if fields.pop("weirgate", None) is None:
        return item
    return msgspec.structs.replace(item, wire=msgspec.json.encode(fields))


def offer(call: Call, specs: tuple[Spec, ...]) -> Offer | None:
    """`specs` behind the client's own tools: those of a name that no tool of the client's has. None where none is
    left."""
    theirs = _names(call.tools) if call.tools else frozenset[str]()
    ours = [spec for spec in specs if spec.name not in theirs]
    if not ours:
        return None
    wire = b",".join(_definition(spec) for spec in ours)
    own = call.tools.strip()[1:-1].strip() if theirs else b""
    digest = blake2b(call.tools_digest + wire, digest_size=16).digest()
    return Offer(
        names=frozenset(spec.name for spec in ours),
        members={"tools": b"[" + (own + b"," if own else b"") + wire + b"]"},
        tokens=call.tools_tokens + estimate(wire.decode("utf-8", "replace")),
        digest=digest,
    )


def barred(call: Call) -> bool:
    """Whether the request wants one answer of a fixed form, or says itself which tools are called: then none of ours
    is offered (DESIGN 3)."""
    get = call.fields.get
    return (
        call.choices > 1
        or get("tool_choice", b"null") not in _FREE
        or get("logprobs", b"null") not in (b"null", b"false")
        or get("response_format", b"null").replace(b" ", b"") not in _PLAIN
        or get("parallel_tool_calls", b"null") == b"false"
        or get("functions", b"null") != b"null"
    )


def _definition(spec: Spec) -> bytes:
    function = {"name": spec.name, "description": spec.description, "parameters": msgspec.Raw(spec.parameters)}
    return msgspec.json.encode({"type": "function", "function": function})


def _names(tools: bytes) -> frozenset[str]:
    """The names of the client's tools, whatever kind they are of; a tool without one counts as one."""
    found = set()
    for raw in elements(tools, "tools"):
        try:
            tool = _TOOL.decode(raw)
        except msgspec.DecodeError:
            tool = _Tool()
        inside = tool.function or tool.custom
        found.add(str(inside.name if inside is not None else tool.name))
    return frozenset(found)


def _fields(item: Message) -> dict[str, msgspec.Raw]:
    return _FIELDS.decode(without_lone_surrogates(write_message(item)))


def _content(item: Message) -> str | list[msgspec.Raw]:
    """The content as the client sent it: a string, or its parts."""
    raw = _fields(item).get("content")
    value = msgspec.json.decode(raw, type=str | list[msgspec.Raw] | None) if raw is not None else ""
    return "" if value is None else value


def _written(fields: dict[str, msgspec.Raw], contents: list[str | list[msgspec.Raw]]) -> bytes:
    """A message of `fields` with `contents` as its content: one string if they are strings, else parts."""
    strings = [content for content in contents if isinstance(content, str)]
    if len(strings) == len(contents):
        content: object = _BREAK.join(text for text in strings if text)
    else:
        parts: list[object] = []
        for each in contents:
            if isinstance(each, str):
                parts += [{"type": "text", "text": each}] if each else []
            else:
                parts += each
        content = parts
    return msgspec.json.encode({**fields, "content": content})
