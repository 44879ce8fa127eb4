"""What an operator puts between a client and a model: agents, and the skills that they offer.

Values only. Reading them from files is the work of `proxy.agents` and of `tools.skills`; which of them a prompt holds,
of `layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from proxy.core.effort import Effort as Effort
from proxy.core.policy import matches

ANYBODY: Final = ("*",)
"""Patterns of end users that everybody fits, also who names none."""


class Skill(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Instructions for one kind of work, loaded whole when they are needed.

    `id` is its identity in traces ("acme/refund-policy": the folder of the organisation, then the slug); `when` the one
    line that says when to use it, `text` what is loaded. `users` are patterns of the end users who may see it. One that
    is not `published` is refused by name; one that is not `offered` is in no catalogue, but a user may select it.
    """

    id: str
    slug: str
    when: str
    text: str
    users: tuple[str, ...] = ANYBODY
    published: bool = True
    offered: bool = True

    def seen_by(self, user: str | None) -> bool:
        """Whether the end user `user` (None: none was named) may see it."""
        return visible(self.users, user)


Shelf = Mapping[str, Skill]
"""The skills of one organisation and those that all share, by slug; an organisation's own hides a shared one."""

EMPTY: Final[Shelf] = MappingProxyType({})


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool of the gateway as a model is told of it; `parameters` is a JSON Schema, as JSON."""

    name: str
    description: str
    parameters: bytes


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much of its closed turns a model is told.

    `turns` are replayed, counted from the latest compaction in use; `calls` of each; results of the `result_turns`
    latest, at most `result_chars` characters each; strings in arguments are at most `argument_chars` long. These
    boundaries move every `step` turns (None: as is cheapest with the tariff, `memory.step_of`). What slides out becomes
    a compaction, or is dropped.
    """

    turns: int = 20
    calls: int = 8
    result_turns: int = 3
    result_chars: int = 400
    argument_chars: int = 400
    step: int | None = None
    leaving: Literal["fold", "drop"] = "fold"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual model.

    `model` is the name of `models` that it leads to; `client_system` where a client's own leading system messages go,
    measured by the instructions; `skills` the slugs (or patterns) of its catalogue; `place` where a selected skill is
    put; `effort` its level where a message states none; `tools` the gateway's tools that it offers; `memory` how its
    closed turns are told (None: word for word).
    """

    name: str
    model: str
    instructions: str = ""
    client_system: Literal["after", "before", "refuse"] = "after"
    skills: tuple[str, ...] = ()
    place: Literal["system", "message"] = "system"
    effort: Effort | None = None
    tools: tuple[str, ...] = ("load_skill",)
    memory: MemoryLimits | None = None
    tenants: tuple[str, ...] = ANYBODY
    users: tuple[str, ...] = ANYBODY

    def seen_by(self, tenant: str, user: str | None) -> bool:
        """Whether this caller may know that it exists."""
        return visible(self.tenants, tenant) and visible(self.users, user)


def visible(patterns: tuple[str, ...], name: str | None) -> bool:
    """Whether `name` fits one of `patterns`; who has no name fits "*" alone."""
    return "*" in patterns or (name is not None and any(matches(pattern, name) for pattern in patterns))
