"""Identity: the digest of a message as the client sees it, and the chain of digests along a conversation.

    digest[0] = H(version, scope)      digest[i] = H(digest[i-1], canonical(message i))

The canonical form is a contract: stored digests depend on it. A change makes a new VERSION, and the one before stays
readable. It holds role and client-visible content: text trimmed with line ends unified, a string equal to a one-part
list, null equal to "" and to absence, tool arguments parsed and re-written with sorted keys, tool results by the
ordinal of their call, media by hash, lone surrogates as the replacement character. Left out: system and developer
messages (they carry dates), reasoning, names, cache marks, ids, unknown members. Each rule answers a trap seen on the
wire (research/real-parts.md 5.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.core.conversation import SYSTEM, Block, Media, Message, Role, Text, ToolCall, ToolResult
from proxy.core.lettered import lettered
from proxy.core.measure import message_tokens
from proxy.core.past import Chain
from proxy.core.slugs import selected

VERSION: Final = 1
SIZE: Final = 20
"""Bytes of a digest: 160 bits, beyond any collision search."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Made once: `json.loads` and `json.dumps` with arguments of their own make one for each call.
_ARGUMENTS: Final = json.JSONDecoder()
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_NO_CALL: Final = b"\xff\xff"
_NO_ORDINALS: Final[Mapping[str, bytes]] = MappingProxyType({})


def scope(secret: bytes, tenant: str, key: str, end_user: str | None) -> bytes:
    """The keyed digest that all identities of one caller start from. Fields are length-prefixed, never joined."""
    digest = blake2b(key=secret, digest_size=32)
    for field in (tenant, key, end_user or ""):
        data = field.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.digest()


def message(
    role: Role, blocks: tuple[Block, ...], wire: bytes | None = None, name: str | None = None, *, sized: bool = True
) -> Message:
    """A message with its identity, its estimated size and what is asked of it at every call.

    Without its size (`sized`; `tokens` is 0) where it is an answer: few are told again by us (`measured`), and the
    size costs as much as all the rest.
    """
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    media = said = False
    for block in blocks:
        if type(block) is ToolCall:
            calls.append(block)
        elif type(block) is Text or type(block) is ToolResult:
            media = media or bool(block.media)
            said = said or bool(block.text and not block.text.isspace())
            if type(block) is ToolResult:
                results.append(block)
    return Message(
        role=role,
        blocks=blocks,
        wire=wire,
        name=name,
        digest=identify(role, blocks),
        tokens=message_tokens(blocks, name) if sized else 0,
        calls=tuple(calls),
        results=tuple(results),
        media=media,
        empty=not (calls or media or said),
        slugs=_slugs(blocks) if said and role == "user" else (),
    )


def measured(answer: Message) -> Message:
    """`answer` with its size: it will be part of a prompt."""
    return msgspec.structs.replace(answer, tokens=message_tokens(answer.blocks, answer.name))


def _slugs(blocks: tuple[Block, ...]) -> tuple[str, ...]:
    """What the first words select; media before them are left aside."""
    for block in blocks:
        if type(block) is Text and (text := block.text.lstrip()):
            return selected(text) if text[0] == "/" else ()
    return ()


def identify(role: Role, blocks: Iterable[Block]) -> bytes:
    """The digest of a message's canonical form. Tool call ids are not in it: the chain puts ordinals in their place."""
    parts = [role.encode()]
    for block in blocks:
        if type(block) is Text:
            text = canonical_text(block.text)
            if text:
                _put(parts, b"T", text)
            if block.media:
                _put_media(parts, block.media)
        elif type(block) is ToolCall:
            _put(parts, b"C", block.name)
            _put(parts, b"A", canonical_arguments(block.arguments))
        elif type(block) is ToolResult:
            _put(parts, b"R", canonical_text(block.text))
            _put_media(parts, block.media)
    return blake2b(b"".join(parts), digest_size=SIZE).digest()


def canonical_text(text: str) -> str:
    """Trimmed, line ends unified, lone surrogates replaced."""
    text = text.strip()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def canonical_arguments(arguments: str) -> str:
    """The arguments' value with sorted keys and no blanks; text that is not JSON stands as it is, trimmed."""
    if not arguments.strip():
        return "{}"
    try:
        text = _CANONICAL.encode(_ARGUMENTS.decode(arguments))
    except (ValueError, RecursionError, TypeError):
        return canonical_text(arguments)
    return canonical_text(text)


def follow(start: bytes, messages: Sequence[Message]) -> Chain:
    """The chain of `messages` from `start` (see `begin`)."""
    return extend(Chain(start=start, after=(), counted=()), messages)


def extend(known: Chain, messages: Sequence[Message]) -> Chain:
    """The chain of `messages`, whose first ones have the chain `known`."""
    first = len(known.after)
    current = known.last
    count = known.counted[-1] if first else 0
    after: list[bytes] = []
    counted: list[int] = []
    ordinals = _open_calls(messages, first) if first else _NO_ORDINALS
    for item in messages[first:]:
        role = item.role
        if role not in SYSTEM:
            count += 1
            link = current + item.digest
            if role == "assistant":
                ordinals = _ordinals(item.calls)
            elif item.results:
                link += b"".join([ordinals.get(result.call_id, _NO_CALL) for result in item.results])
            current = blake2b(link, digest_size=SIZE).digest()
        after.append(current)
        counted.append(count)
    if not first:
        return Chain(start=known.start, after=tuple(after), counted=tuple(counted))
    return Chain(start=known.start, after=(*known.after, *after), counted=(*known.counted, *counted))


def answered(digest: bytes, answer: Message) -> bytes:
    """The digest behind an assistant's answer to what ends in `digest`."""
    return blake2b(digest + answer.digest, digest_size=SIZE).digest()


def _open_calls(messages: Sequence[Message], first: int) -> Mapping[str, bytes]:
    """The ordinals of the calls that results from message `first` on may answer."""
    for index in range(first - 1, -1, -1):
        if messages[index].role == "assistant":
            return _ordinals(messages[index].calls)
    return _NO_ORDINALS


def _ordinals(calls: tuple[ToolCall, ...]) -> Mapping[str, bytes]:
    return {call.id: index.to_bytes(2, "big") for index, call in enumerate(calls)} if calls else _NO_ORDINALS


def begin(scope: bytes, version: int = VERSION) -> bytes:
    """digest[0] of a caller's conversations."""
    return blake2b(version.to_bytes(2, "big") + scope, digest_size=SIZE).digest()


def reference(scope: bytes, text: str) -> str:
    """The name of a whole text that was cut in a prompt: content-addressed, and another's guess leads nowhere."""
    return "res_" + lettered(blake2b(text.encode("utf-8", "replace"), key=scope, digest_size=12).digest())


def shape(system: bytes, tools: bytes, compaction: str | None) -> bytes:
    """What else decides a prompt's size: system messages (their digests, joined), tools (their digest) and the
    compaction in use. An anchor holds for one."""
    lengths = b"%d %d " % (len(system), len(tools))
    return blake2b(lengths + system + tools + (compaction or "").encode(), digest_size=SIZE).digest()


def _put(parts: list[bytes], kind: bytes, value: str | bytes) -> None:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    parts += (kind, len(data).to_bytes(8, "big"), data)


def _put_media(parts: list[bytes], media: tuple[Media, ...]) -> None:
    for item in media:
        _put(parts, b"M", item.digest)
