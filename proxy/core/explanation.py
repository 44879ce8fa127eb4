"""The account of one call, as values: what `explaining` makes, a route tells and a command shows.

Words only. Sizes are tokens.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.core.effort import Effort
from proxy.core.layout import Clip, Noted
from proxy.core.pacing import Window
from proxy.core.policy import Mode
from proxy.core.shares import Part
from proxy.core.steps import Prompt

Decision = Literal[
    "relayed",
    "command",
    "again",
    "unknown",
    "fits",
    "kept",
    "folded",
    "made",
    "asks",
    "automatic_off",
    "paused",
    "stuck",
]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The window in tokens and where that is known from; where a compaction is made, what it aims at, and what is
    held back for the answer."""

    window: int
    source: str
    trigger: int
    target: int
    reserve: int


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A repair of the history, and how often it was needed."""

    what: Literal["unanswered_call", "empty_result", "orphan_result", "dropped_or_moved", "merged"]
    count: int


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The compaction in use. `known` was made by an earlier call and found again; `new` would be made now, stored, and
    rests on built-in notes here: `asks` are the models that would be asked for an account of it, the next where one
    fails. `messages` and `tokens` are what it takes the place of, `clips` are messages that stay but are cut."""

    state: Literal["known", "new"]
    id: str
    trigger: str
    writer: str
    notes: Noted
    messages: int
    tokens: int
    clips: tuple[Clip, ...] = ()
    asks: tuple[str, ...] = ()


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """The effort that holds, whose word that is, and the members of the body that tell it (null: taken out)."""

    level: Effort
    source: Literal["request", "turn", "agent"]
    members: msgspec.Raw


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """How many tools the client offers, and ours by name; `why` there are none of ours."""

    client: int
    own: tuple[str, ...] = ()
    why: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one call. Sizes are tokens.

    `tokens` is what decides: the projected size of what would be sent, told by what the provider `reported` for the
    same beginning, `counted`, or `estimated`; `whole` the same where the least is left out. `memory` counts the closed
    turns that have slid out of it, that are told without results, and that are told shorter (None: all are told as they
    were). `model` is the name that was
    asked for, `upstream_model` the one that the provider knows. `conversation` is None for one that is not known yet.
    `decision` names what is done about the size, `why` says it; `stopped` is why less than usual is done for
    this branch. `output` is the limit of the answer as it would be
    sent, `lowered` whether that is less than was asked for. `same_bytes`: the messages are the client's, byte for byte.
    What has a default is of a prompt that would be sent: of a command there is none.
    """

    model: str
    agent: bool
    upstream: str
    upstream_model: str
    mode: Mode
    policy: str
    conversation: str | None
    label: str | None
    tokens: int
    basis: Literal["reported", "counted", "estimated"] = "estimated"
    whole: int
    held: Held | None
    messages: int = 0
    turns: int
    parts: tuple[Part, ...] = ()
    decision: Decision
    why: str
    stopped: str = ""
    memory: Window | None = None
    compaction: Compacted | None = None
    repaired: tuple[Fix, ...] = ()
    skills: tuple[str, ...] = ()
    effort: Thought | None = None
    tools: Tools = Tools(client=0)
    output: int | None = None
    lowered: bool = False
    same_bytes: bool = False


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` is what would be sent; None where nothing would (a command to the gateway)."""

    told: Explanation
    prompt: Prompt | None
