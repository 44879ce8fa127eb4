"""What one caller's call may be given of an operator's prompts, skills and tools; the driver fills it in.

`layers` decides what of it a prompt holds. What is written as wire JSON is written by a dialect, behind `Dressing`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final, Literal, Protocol

import msgspec

from proxy.core.agent import EMPTY, Agent, Effort, Shelf
from proxy.core.conversation import Message

Members = Mapping[str, bytes | None]
"""Top-level members of a request to be set, as raw JSON; None takes one out."""

UNCHANGED: Final[Members] = MappingProxyType({})


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a catalogue, as it was when the conversation began."""

    slug: str
    when: str


Catalogue = tuple[Entry, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A skill that a user selected, or that the model loaded; `id` is the skill's."""

    kind: Literal["SKILL_SELECT", "SKILL_LOAD"]
    id: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own tools in one request. `names` are theirs alone; `tokens` and `digest` are of all definitions
    together, the client's first; `members` puts them there."""

    names: frozenset[str]
    members: Members
    tokens: int
    digest: bytes


class Standing:
    """What of a stack is the same from call to call, worked out once (`layers.standing`): the operator's and the
    author's texts with their names replaced, and the catalogue as it is now. Equal only to itself, so that what is
    made of it can be kept under it."""

    __slots__ = ("author", "base", "catalogue")

    def __init__(self, base: str, author: str, catalogue: Catalogue) -> None:
        self.base = base
        self.author = author
        self.catalogue = catalogue


class Dressing(Protocol):
    """What a dialect writes for the layers, for one call."""

    def leading(
        self, of: tuple[Hashable, ...], clients: tuple[Message, ...], texts: Callable[[], tuple[str, str]]
    ) -> Message:
        """One leading system message: our text, the client's own parts as they came, our text. The two are `texts`,
        which is asked only where nothing is known that was made `of` the same."""

    def written(self, item: Message) -> Message:
        """`item` in the bytes that it is sent in, for one that will be sent again."""

    def beside(self, text: str, item: Message) -> Message:
        """`item`, a user's message, with `text` in front of its own words."""

    def plain(self, item: Message) -> Message:
        """`item`, an answer of ours that a client sends back, without the members that only clients can read."""

    def offer(self, catalogue: Catalogue, tools: tuple[str, ...] = ()) -> Offer | None:
        """The own tools that can be offered, those of `tools` behind the one that loads skills of `catalogue`; None
        where the request forbids them or the client's shadow them all."""

    def effort(self, level: Effort | None, own: Members) -> Members:
        """How the upstream is told the effort `level`, beside `own` members of ours."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """`base` is the operator's prompt, `facts` what `{name}` in a layer stands for, `stated` the effort that the
    message asks for. Where there is neither a base nor an agent there is no stack."""

    base: str
    agent: Agent | None
    dressing: Dressing
    shelf: Shelf = EMPTY
    user: str | None = None
    facts: Mapping[str, str] = MappingProxyType({})
    stated: Effort | None = None
    standing: Standing | None = None
    """What was worked out of it before."""
