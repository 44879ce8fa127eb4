"""What was said: blocks, messages, groups and turns.

Words only. Rules about them stand elsewhere: what may not be parted in `groups`, identity in `chain`,
size in `measure`. Every value is frozen; a changed message is a new message. Frozen values form no cycles, so the
collector is told (`gc=False`) not to look at them: there are thousands, and it would look at each again and again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

SYSTEM: Final[tuple[Role, ...]] = ("system", "developer")
"""Roles of those who run the conversation, not of those who hold it: no part of its identity, turns or notes."""

MAIN = "main"
"""The component that every block and row belongs to unless it says otherwise."""


class Audience(StrEnum):
    """Which of the two transcripts a block belongs to."""

    SHOWN = "shown"
    TOLD = "told"
    BOTH = "both"


class Media(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An image, sound or file inside a text or a tool result; its bytes stay in the wire form.

    `digest` is the hex BLAKE2b of its content or address, `size` the bytes it takes on the wire,
    `width` and `height` its pixels where the header could be read. `wire` is the content part as it arrived.
    """

    kind: Literal["image", "audio", "file"]
    digest: str
    size: int
    width: int | None = None
    height: int | None = None
    detail: str | None = None
    wire: bytes = b""


class _Block(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    audience: Audience = Audience.BOTH
    component: str = MAIN


class Reasoning(_Block, frozen=True, kw_only=True, gc=False):
    """A model's thinking. Never part of an identity; replayed only inside an open tool loop."""

    text: str


class Text(_Block, frozen=True, kw_only=True, gc=False):
    """Prose, with the media that stand at this place. Only a text may be marked final (the answer)."""

    text: str
    media: tuple[Media, ...] = ()
    final: bool = False


class ToolCall(_Block, frozen=True, kw_only=True, gc=False):
    """A call the model makes. `arguments` is the JSON text as it was written; `extra` the raw JSON object of members
    that its provider wants back with it (Gemini's `extra_content` holds a thought signature), b"" without."""

    id: str
    name: str
    arguments: str
    extra: bytes = b""


class ToolResult(_Block, frozen=True, kw_only=True, gc=False):
    """What a tool gave back for the call `call_id`."""

    call_id: str
    text: str
    media: tuple[Media, ...] = ()


class Clarification(_Block, frozen=True, kw_only=True, gc=False):
    """A question to the user that pauses the turn."""

    id: str
    question: str
    options: tuple[str, ...] = ()


class Approval(_Block, frozen=True, kw_only=True, gc=False):
    """A request to be allowed an action; pauses the turn."""

    id: str
    action: str
    reason: str


class CompactionBlock(_Block, frozen=True, kw_only=True, gc=False):
    """Where in the conversation a compaction happened: its notes and what set it off."""

    notes: str
    trigger: Literal["AUTO", "MANUAL"]


Block = Reasoning | Text | ToolCall | ToolResult | Clarification | Approval | CompactionBlock


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks of one role.

    `wire` is the JSON of this message as it arrived; None for a message that the gateway made, which the
    dialect renders. `digest` is the identity of its client-visible content (`chain.identify`), `tokens` its
    estimated size (`measure.estimate`). `calls` and `results` are its blocks of these kinds, `media` says whether it
    holds any, `empty` whether it holds nothing that a provider would take for content, `slugs` the skills that a user's
    begins with (`core.slugs`). All are worked out once, by `chain.message`: a history is read at every call, and its
    messages are kept between calls.
    """

    role: Role
    blocks: tuple[Block, ...]
    wire: bytes | None
    digest: bytes
    tokens: int
    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    media: bool
    empty: bool
    slugs: tuple[str, ...] = ()
    name: str | None = None

    @property
    def text(self) -> str:
        """The prose of this message: texts and tool results, without reasoning or calls."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, Text | ToolResult) and block.text)


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages `first` to `last` (inclusive) that may never be parted: a call with all its results, or one other."""

    first: int
    last: int


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages `first` to `last` (inclusive): neighbouring user messages and all that follows up to the next."""

    first: int
    last: int
