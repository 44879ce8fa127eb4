"""The stored form of a compaction: structured notes, rendered to text only when a prompt is assembled.

Words only; `compaction` makes them, `ledger` fills their entries. Immutable and content-addressed: equal histories
and equal budgets give equal notes, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from proxy.core.conversation import Message

Sighting = tuple[str, str, int, int]
"""An identifier in a message: its kind, its text, who said it, and the place of the block that says it."""
Sightings = tuple[Sighting, ...]
Scan = Callable[[Message], Sightings]
"""Reads a message for the ledger: `ledger.sightings`, or the same with memory."""


Kind = Literal["path", "url", "id", "number", "line", "name", "command", "error"]
"""Named one by one, so that a thousand entries read from the store share eight strings."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier request of the user. `turn` counts from 1; `text` is whole, or head and tail where `cut` is True."""

    turn: int
    text: str
    cut: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger: an identifier that must survive.

    `kind` is path, url, id, number, line (of a listing), name (in code), command or error; `turn` is the turn it was
    last seen in; `source` names the tool whose call or result it came from (the call that would get it again), "" for
    prose.
    """

    kind: Kind
    text: str
    turn: int
    source: str = ""


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What stands for every group before the tail.

    `turns` whole turns are covered; `part` is True where the first part of the turn after them is covered too.
    `pins` are in turn order, `dropped` counts earlier messages of the user that no longer fit, `unlisted` the ledger
    entries that did not. `calls` names the tools used with their counts. `narrative` is the model's account; the
    built-in writer leaves it empty. `rules` are sentences of the user that read like standing rules and stand nowhere
    else in the prompt, `kept` the references of pages with what the notes leave out, newest first.
    """

    turns: int
    part: bool = False
    pins: tuple[Pin, ...] = ()
    dropped: int = 0
    ledger: tuple[Entry, ...] = ()
    unlisted: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    narrative: str = ""
    rules: tuple[Pin, ...] = ()
    kept: tuple[str, ...] = ()


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """Notes that replace the first `covers` shown messages, and the clips that were made behind them.

    It belongs to every history whose first `messages` chained messages (system and developer messages not counted)
    end in `digest`; `covers` is at most that. `clips` are pairs (chained message, most characters) for messages that
    stay but were too long: they are clipped again, to the same bytes, whenever the compaction is used. `standing` says
    how many of the system messages inside the covered part stay, newest first. `id` is derived
    from the content. The narrative of its notes stands for the first `narrated` messages (0: for all that is covered).
    `writer` is builtin or the model's name, `trigger` AUTO or MANUAL, `before` and `after` the
    projected tokens of the prompt.
    """

    id: str
    digest: bytes
    messages: int
    covers: int
    notes: Notes
    clips: tuple[tuple[int, int], ...] = ()
    standing: int = 0
    writer: str = "builtin"
    trigger: str = "AUTO"
    before: int = 0
    after: int = 0
    window: int = 0
    narrated: int = 0

    @property
    def told_to(self) -> int:
        """How many messages the narrative of its notes stands for."""
        return self.narrated or self.covers
