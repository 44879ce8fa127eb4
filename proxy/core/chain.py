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
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from proxy.core.conversation import SYSTEM, Block, Media, Message, Role, Text, ToolCall, ToolResult
from proxy.core.measure import message_tokens

VERSION: Final = 1
SIZE: Final = 20
"""Bytes of a digest: 160 bits, beyond any collision search."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NO_CALL: Final = b"\xff\xff"


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The identities along a history. `after[i]` is the digest behind message i, `counted[i]` how many messages up to
    and including i have an identity; `start` is the digest before all of them."""

    start: bytes
    after: tuple[bytes, ...]
    counted: tuple[int, ...]

    @property
    def last(self) -> bytes:
        return self.after[-1] if self.after else self.start

    def behind(self, counted: int) -> int:
        """Index just behind the `counted`-th chained message; 0 for none."""
        return bisect_left(self.counted, counted) + 1 if counted else 0

    def holds(self, digest: bytes, counted: int) -> bool:
        """Whether the first `counted` chained messages end in `digest`."""
        if counted == 0:
            return digest == self.start
        place = self.behind(counted) - 1
        return place < len(self.after) and self.counted[place] == counted and self.after[place] == digest


def scope(secret: bytes, tenant: str, key: str, end_user: str | None) -> bytes:
    """The keyed digest that all identities of one caller start from. Fields are length-prefixed, never joined."""
    digest = blake2b(key=secret, digest_size=32)
    for field in (tenant, key, end_user or ""):
        data = field.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.digest()


def message(role: Role, blocks: tuple[Block, ...], wire: bytes | None = None, name: str | None = None) -> Message:
    """A message with its identity, its estimated size and what is asked of it at every call."""
    calls = tuple([block for block in blocks if type(block) is ToolCall])
    said = [block for block in blocks if type(block) is Text or type(block) is ToolResult]
    media = any(block.media for block in said)
    return Message(
        role=role,
        blocks=blocks,
        wire=wire,
        name=name,
        digest=identify(role, blocks),
        tokens=message_tokens(blocks, name),
        calls=calls,
        results=tuple([block for block in said if type(block) is ToolResult]),
        media=media,
        empty=not (calls or media or any(block.text.strip() for block in said)),
    )


def identify(role: Role, blocks: Iterable[Block]) -> bytes:
    """The digest of a message's canonical form. Tool call ids are not in it: the chain puts ordinals in their place."""
    digest = blake2b(digest_size=SIZE)
    digest.update(role.encode())
    for block in blocks:
        if type(block) is Text:
            _put(digest, b"T", canonical_text(block.text))
            _put_media(digest, block.media)
        elif type(block) is ToolCall:
            _put(digest, b"C", block.name)
            _put(digest, b"A", canonical_arguments(block.arguments))
        elif type(block) is ToolResult:
            _put(digest, b"R", canonical_text(block.text))
            _put_media(digest, block.media)
    return digest.digest()


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
        value = json.loads(arguments)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        return canonical_text(arguments)
    return canonical_text(text)


def follow(start: bytes, messages: Iterable[Message]) -> Chain:
    """The chain of `messages` from `start` (see `begin`)."""
    current = start
    count = 0
    after: list[bytes] = []
    counted: list[int] = []
    ordinals: dict[str, bytes] = {}
    for item in messages:
        if item.role not in SYSTEM:
            count += 1
            place = b""
            if item.role == "assistant":
                calls = item.calls
                ordinals = {call.id: index.to_bytes(2, "big") for index, call in enumerate(calls)} if calls else {}
            elif item.results:
                place = b"".join([ordinals.get(result.call_id, _NO_CALL) for result in item.results])
            current = blake2b(current + item.digest + place, digest_size=SIZE).digest()
        after.append(current)
        counted.append(count)
    return Chain(start=start, after=tuple(after), counted=tuple(counted))


def begin(scope: bytes, version: int = VERSION) -> bytes:
    """digest[0] of a caller's conversations."""
    return blake2b(version.to_bytes(2, "big") + scope, digest_size=SIZE).digest()


def reference(scope: bytes, text: str) -> str:
    """The name of a whole text that was cut in a prompt: content-addressed, and another's guess leads nowhere."""
    return "res_" + blake2b(text.encode("utf-8", "replace"), key=scope, digest_size=12).hexdigest()


def shape(messages: Iterable[Message], tools: bytes, compaction: str | None) -> bytes:
    """What else decides a prompt's size: system messages, tools and the compaction in use. An anchor holds for one."""
    digest = blake2b(digest_size=SIZE)
    for item in messages:
        if item.role in SYSTEM:
            digest.update(item.digest)
    _put(digest, b"t", tools)
    _put(digest, b"c", compaction or "")
    return digest.digest()


def _put(digest: blake2b, kind: bytes, value: str | bytes) -> None:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    if kind == b"T" and not data:
        return
    digest.update(kind + len(data).to_bytes(8, "big"))
    digest.update(data)


def _put_media(digest: blake2b, media: tuple[Media, ...]) -> None:
    for item in media:
        _put(digest, b"M", item.digest)
