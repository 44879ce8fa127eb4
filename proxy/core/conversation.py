"""What was said: blocks, messages, groups and turns; and the laws of blocks.

Only a text may be final, in an answer that ends its turn (`concluded`). A compaction block holds notes and what set it
off, in the assistant's message. A call precedes its result, and has at most one; ids are unique within a message.
Reasoning is not told again. They hold for what we make, and are enforced where it is made (`lawful`); a history that a
client sends is not ours: `groups.repair` makes it fit.

Other rules stand elsewhere: what may not be parted in `groups`, identity in `chain`, size in `measure`. Every value is
frozen; a changed message is a new message. Frozen values form no cycles, so the collector is told (`gc=False`) not to
look at them: there are thousands, and it would look at each again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal

import msgspec

from proxy.core.errors import Internal

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

    def __post_init__(self) -> None:
        if self.trigger not in ("AUTO", "MANUAL") or not self.notes.strip():
            raise Internal("A compaction block without notes or trigger.")


Block = Reasoning | Text | ToolCall | ToolResult | Clarification | Approval | CompactionBlock


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks of one role.

    `wire` is the JSON of this message as it arrived; None for a message that the gateway made, which the
    dialect renders. `digest` is the identity of its client-visible content (`chain.identify`), `tokens` its
    estimated size (`measure.estimate`). `calls` and `results` are its blocks of these kinds, `media` says whether it
    holds any, `empty` whether it holds nothing that a provider would take for content, `slugs` the skills that a user's
    begins with (`core.slugs`). All are worked out once, by `chain.message`: a history is read at every call, and its
    messages are kept between calls. `answer`: it is told as the result of a call, but a user said it, who was asked
    (`pauses`).
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
    answer: bool = False

    @property
    def by_user(self) -> bool:
        """Whether a user said it."""
        return self.role == "user" or self.answer

    @property
    def text(self) -> str:
        """The prose of this message: texts and tool results, without reasoning or calls."""
        blocks = [block for block in self.blocks if type(block) is Text or type(block) is ToolResult]
        return "\n".join([block.text for block in blocks if block.text])


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages `first` to `last` (inclusive) that may never be parted: a call with all its results, or one other."""

    first: int
    last: int


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages `first` to `last` (inclusive): neighbouring user messages and all that follows up to the next."""

    first: int
    last: int


# -- laws of blocks ---------------------------------------------------------------------------------------------------

_ENDS: Final = ("stop", "length")
"""How a model ends an answer that is one: it had nothing more to say, or no more room to say it."""


def concluded(answer: Message, finish: str | None) -> Message:
    """`answer`, the last message of a turn that ended with `finish`, its last text marked as final; `answer` itself
    where the turn goes on (calls, a question, a request for approval), failed, or was a command.

    A pause or a command that is told as plain text has no such block: whoever shows it does not ask.
    """
    if finish not in _ENDS or answer.role != "assistant" or answer.calls:
        return answer
    last = -1
    for place, block in enumerate(answer.blocks):
        if type(block) is Clarification or type(block) is Approval:
            return answer
        if type(block) is CompactionBlock and block.trigger == "MANUAL":
            return answer
        if type(block) is Text and (block.media or block.text.strip()):
            last = place
    if last < 0:
        return answer
    blocks = list(answer.blocks)
    blocks[last] = msgspec.structs.replace(answer.blocks[last], final=True)
    return msgspec.structs.replace(answer, blocks=tuple(blocks))


def lawful(messages: Iterable[Message], *, closed: bool = False) -> None:
    """Raise Internal where `messages`, which we made, break a law of blocks. `closed`: they are of a turn that is over,
    and told again: then each call has its result, and there is no reasoning."""
    waiting: set[str] = set()
    for item in messages:
        if item.results:
            _answer(item, waiting)
            continue
        if waiting and closed:
            raise Internal("A call without its result.")
        waiting = {call.id for call in item.calls}
        if len(waiting) < len(item.calls) or (waiting and item.role != "assistant"):
            raise Internal("A call in the wrong place, or one id for two.")
        for block in item.blocks:
            _in_place(item, block, closed)
    if waiting and closed:
        raise Internal("A call without its result.")


def _answer(item: Message, waiting: set[str]) -> None:
    for result in item.results:
        if result.call_id not in waiting:
            raise Internal("A result without its call before it, or a second one.")
        waiting.discard(result.call_id)


def _in_place(item: Message, block: Block, closed: bool) -> None:
    if closed and type(block) is Reasoning:
        raise Internal("Reasoning that is told again.")
    if type(block) is CompactionBlock and item.role != "assistant":
        raise Internal("A compaction outside the assistant's message.")
    if type(block) is Text and block.final and (item.role != "assistant" or item.calls):
        raise Internal("A final text that ends no turn.")
