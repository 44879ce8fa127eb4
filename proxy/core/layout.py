"""Where each told message comes from, once a compaction has taken the place of others.

Belongs here: which place of a prompt is a system message, the notes, the open request or the tail, which message of the
history stands there, whether it was cut, and what is gone. Never: sizes (whoever counts has his own) or a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from proxy.core.compaction import assemble, remaining
from proxy.core.conversation import SYSTEM, Message
from proxy.core.notes import Compaction, Notes
from proxy.core.past import Chain
from proxy.core.render import covered


class Layout:
    """`told` is `messages` with `used` in place of what it covers (None: whole).

    Its first `front` messages are system messages; behind them, up to `behind`, stand the notes, if they are told; then
    the `opened` messages of the open request, then the tail.
    """

    def __init__(self, messages: tuple[Message, ...], chain: Chain, used: Compaction | None) -> None:
        self.messages = messages
        self.lead: Final = leading(messages)
        self.told = messages if used is None else assemble(messages, chain, used)
        self.front: Final = leading(self.told)
        self.cut: Final = self.lead if used is None else chain.behind(used.covers) or self.lead
        kept = range(self.lead, len(messages)) if used is None else remaining(messages, chain, used)
        self.behind: Final = len(self.told) - len(kept)
        self.opened: Final = sum(index < self.cut for index in kept)
        self.origins: Final[Mapping[int, int]] = dict(zip(range(self.behind, len(self.told)), kept, strict=True))
        """For each place behind the notes the index of the message that stands there."""

    @property
    def notes(self) -> range:
        """The places of the notes: one, or none."""
        return range(self.front, self.behind)

    @property
    def open(self) -> range:
        """The places of the request that is open, where it was taken out of the covered part."""
        return range(self.behind, self.behind + self.opened)

    @property
    def tail(self) -> range:
        return range(self.behind + self.opened, len(self.told))

    @property
    def clipped(self) -> tuple[int, ...]:
        """The places of messages that stay but were cut."""
        return tuple(place for place, index in self.origins.items() if self.told[place] is not self.messages[index])

    @property
    def gone(self) -> tuple[int, ...]:
        """The indices of the messages that only the notes stand for; system messages that stay are among them."""
        opened = {self.origins[place] for place in self.open}
        return tuple(index for index in range(self.lead, self.cut) if index not in opened)

    @property
    def replaced(self) -> int:
        """How many messages are told no more."""
        return len(self.gone) - (self.front - self.lead)


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What notes hold, in figures. `covers` says in words which turns they stand for; of the user's requests there
    `whole` stand word for word, `cut` as head and tail, `dropped` are only counted. `ledger` counts its entries by
    kind, `unlisted` those that had no room; `kept` are references to whole texts. `narrated`: there is an account."""

    covers: str
    turns: int
    part: bool
    whole: int
    cut: int
    dropped: int
    rules: int
    ledger: tuple[tuple[str, int], ...]
    unlisted: int
    calls: tuple[tuple[str, int], ...]
    kept: int
    narrated: bool


def noted(notes: Notes) -> Noted:
    """`notes` in figures."""
    kinds: dict[str, int] = {}
    for entry in notes.ledger:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    whole = sum(not pin.cut for pin in notes.pins)
    return Noted(
        covers=covered(notes),
        turns=notes.turns,
        part=notes.part,
        whole=whole,
        cut=len(notes.pins) - whole,
        dropped=notes.dropped,
        rules=len(notes.rules),
        ledger=tuple(sorted(kinds.items(), key=lambda each: -each[1])),
        unlisted=notes.unlisted,
        calls=notes.calls,
        kept=len(notes.kept),
        narrated=bool(notes.narrative),
    )


def leading(messages: tuple[Message, ...]) -> int:
    """How many system messages stand in front."""
    return next((index for index, item in enumerate(messages) if item.role not in SYSTEM), len(messages))


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """A message that stays but is cut; `message` is its index in the history, sizes are tokens."""

    message: int
    role: str
    before: int
    after: int
