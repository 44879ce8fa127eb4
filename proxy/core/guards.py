"""What keeps compaction from costing without helping: one small state per branch, moved by what really happened.

    failures   compactions in a row for which no model's narrative was accepted; at the limit no model is asked any more
    pause      automatic compaction stops: no notes could be made at all, or the next real usage was still above the
               trigger. Only a prompt at the very edge of the window still gets built-in notes (the hard tier)

A manual compaction, another model or window, or a usage below the trigger end a pause. Judged by outcome, never by how
often (research/compaction.md F54-F60).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, assert_never

import msgspec


class Pause(StrEnum):
    """Why automatic compaction stands still."""

    NO_NOTES = "no_notes"
    STILL_ABOVE = "still_above"


class Guard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one branch. `model` and `window` are those it was learned with; `awaiting` is the id of the
    compaction whose first real usage is still to come."""

    model: str = ""
    window: int | None = None
    failures: int = 0
    pause: Pause | None = None
    awaiting: str = ""


class Faced(msgspec.Struct, frozen=True, kw_only=True):
    """A call begins, for `model` with `window` tokens (None: unknown)."""

    model: str
    window: int | None


class Wrote(msgspec.Struct, frozen=True, kw_only=True):
    """A model's narrative was accepted."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Models were asked for a narrative, and after all retries none was accepted. Once per compaction."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Notes were stored, whoever wrote them."""

    id: str
    manual: bool = False


class NoNotes(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction ended without notes: nothing could be gained, or the chain ended at the model."""

    manual: bool = False


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """The provider reported `tokens` for a prompt with the compaction `compaction` in use ("": none)."""

    tokens: int
    trigger: int
    compaction: str = ""


Event = Faced | Wrote | Failed | Compacted | NoNotes | Used


def calm(guard: Guard) -> bool:
    """Whether there is nothing to keep: no failure, no pause, no compaction whose outcome is still to come."""
    return not (guard.failures or guard.pause or guard.awaiting)


def moved(guard: Guard, event: Event) -> Guard:
    """The state after `event`."""
    match event:
        case Faced(model=model, window=window):
            same = (guard.model, guard.window) in ((model, window), ("", None))
            return msgspec.structs.replace(guard if same else Guard(), model=model, window=window)
        case Wrote():
            return msgspec.structs.replace(guard, failures=0)
        case Failed():
            return msgspec.structs.replace(guard, failures=guard.failures + 1)
        case Compacted(id=id, manual=manual):
            return msgspec.structs.replace(guard, awaiting=id, pause=None if manual else guard.pause)
        case NoNotes(manual=manual):
            return guard if manual else msgspec.structs.replace(guard, pause=Pause.NO_NOTES)
        case Used():
            return _judged(guard, event)
        case _:
            assert_never(event)


def _judged(guard: Guard, used: Used) -> Guard:
    if used.tokens <= used.trigger:
        return msgspec.structs.replace(guard, pause=None, awaiting="")
    if guard.awaiting and guard.awaiting == used.compaction:
        return msgspec.structs.replace(guard, pause=Pause.STILL_ABOVE, awaiting="")
    return guard


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a compaction may be made now, and whether a model may be asked for its narrative."""

    compaction: bool
    model: bool


def allowed(guard: Guard, *, failure_limit: int, manual: bool, projected: int, most: int) -> Allowed:
    """What `guard` allows for a prompt of `projected` tokens, of which `most` may be sent at all (`measure.Room.most`).

    A manual compaction may always be made, and may always ask. After an overflow, `projected` is the size that was
    refused: the hard tier.
    """
    if manual:
        return Allowed(compaction=True, model=True)
    if guard.pause is not None:
        return Allowed(compaction=projected >= most, model=False)
    return Allowed(compaction=True, model=guard.failures < failure_limit)


def stopped(guard: Guard, failure_limit: int) -> str:
    """One word for headers, rows and metrics: why less than usual is done for this branch; "" where nothing is."""
    if guard.pause is not None:
        return guard.pause.value
    return "model_failures" if guard.failures >= failure_limit else ""


Part = Literal["system", "layers", "tools", "newest"]
"""What no compaction touches: the client's system messages, what the operator adds (loaded skills included), the tool
definitions, the newest group."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What no compaction can make small enough: the largest part of what must stay. `alone` says whether it exceeds
    `most` by itself; `tokens` is its size, `total` that of all that must stay."""

    part: Part
    tokens: int
    total: int
    most: int
    alone: bool

    @property
    def text(self) -> str:
        """For logs and for whoever runs into it."""
        what: dict[Part, str] = {
            "system": "the system messages",
            "layers": "the operator's prompts and skills",
            "tools": "the tool definitions",
            "newest": "the newest messages",
        }
        take = f"take {self.tokens:,} of {self.most:,} tokens"
        if self.alone:
            return f"{what[self.part]} alone {take}"
        return f"what must stay takes {self.total:,} of {self.most:,} tokens; {what[self.part]} {take}"


def floor(*, system: int, layers: int, tools: int, newest: int, most: int) -> Floor | None:
    """The floor where what must stay is larger than `most`, before money is spent; None where it fits. `newest` is the
    newest group, with the request that is open, as small as clipping can make it."""
    sizes: tuple[tuple[Part, int], ...] = (
        ("system", system),
        ("layers", layers),
        ("tools", tools),
        ("newest", newest),
    )
    total = system + layers + tools + newest
    if total <= most:
        return None
    part, tokens = max(sizes, key=lambda each: each[1])
    return Floor(part=part, tokens=tokens, total=total, most=most, alone=tokens > most)
