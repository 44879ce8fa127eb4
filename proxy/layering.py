"""What the operator adds to a call, gathered: the agent's stack of layers with what a dialect writes of it.

Belongs here: the facts that prompts may name, which of our tools go with a catalogue, their answers, and the memory of
what was written before (the same few layers stand before every call). Never: what of it a prompt holds (`core.layers`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from proxy.core import layers
from proxy.core.agent import Agent, Effort, Shelf, Spec
from proxy.core.conversation import Message
from proxy.core.pauses import PAUSING
from proxy.core.policy import ModelCard, Policy
from proxy.core.replayed import LOAD_SKILL, READ_TOOL_RESULT
from proxy.core.stack import UNCHANGED, Catalogue, Members, Offer, Stack
from proxy.core.steps import Call, Ran, RunTools
from proxy.dialects.chat import dressing
from proxy.dialects.chat.effort import effort_members, stated_effort
from proxy.dialects.chat.messages import write_message
from proxy.tools import questions, results_tool, skills_tool

_LANGUAGE: Final = re.compile(
    r"\s*([A-Za-z]{2,3}(?:-[A-Za-z]{4}(?![A-Za-z0-9]))?(?:-(?:[A-Za-z]{2}|[0-9]{3})(?![A-Za-z0-9]))?)"
    r"(?:-[A-Za-z0-9-]*)?\s*(?=[,;]|$)"
)
"""Language, script and region of the first tag of an Accept-Language header (RFC 9110 12.5.4, RFC 5646): what a client
writes there must not become prompt text."""
_NO_LANGUAGE: Final = "the user's language"
_NO_AGENT: Final = "the assistant"
_SETTLED: Final = 1024
"""Callers' stacks that are kept; end users may be any number."""
_WRITTEN: Final = 512
_BYTES: Final = 16 * 1024 * 1024
"""Leading messages and tool lists that are kept: how many, and what they may take on the wire."""

UNKNOWN: Final[Mapping[str, str | None]] = MappingProxyType({})

T = TypeVar("T")


class Layering:
    """Makes the stack of each call. One per process."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._leading: _Kept[Message] = _Kept()
        self._offers: _Kept[Offer | None] = _Kept()
        self._settled: dict[tuple[Hashable, ...], Stack] = {}
        self._day = (-1, "")

    def stack(
        self, call: Call, *, base: str, agent: Agent | None, shelf: Shelf, policy: Policy, card: ModelCard
    ) -> Stack | None:
        """The stack of `call`; None where nothing is added to it."""
        if agent is None and not base:
            return None
        caller, language, date = call.caller, self._language(call.language), self._date()
        dressing = _Dressing(self, call, agent, policy, card)
        key = (id(agent), id(shelf), base, caller.tenant, caller.end_user, language, date)
        found = self._settled.get(key)
        if found is None or found.agent is not agent or found.shelf is not shelf:  # a reload brings new ones
            if len(self._settled) >= _SETTLED:
                self._settled.clear()
            # A plain model's name may be anything that a client writes.
            facts = {
                "agent": agent.name if agent is not None else _NO_AGENT,
                "date": date,
                "tenant": caller.tenant,
                "language": language,
            }
            found = Stack(base=base, agent=agent, dressing=dressing, shelf=shelf, user=caller.end_user, facts=facts)
            found = self._settled[key] = msgspec.structs.replace(found, standing=layers.standing(found))
        stated = stated_effort(call.fields) if agent is not None else None
        return msgspec.structs.replace(found, dressing=dressing, stated=stated)

    def leading(
        self, of: tuple[Hashable, ...], clients: tuple[Message, ...], texts: Callable[[], tuple[str, str]]
    ) -> Message:
        def made() -> Message:
            before, after = texts()
            return dressing.leading(before, clients, after)

        return self._leading.get((*of, *(write_message(item) for item in clients)), made, _message_size)

    def offer(self, call: Call, agent: Agent, catalogue: Catalogue, tools: tuple[str, ...]) -> Offer | None:
        key = (call.tools_digest, agent.tools, catalogue, tools)
        return self._offers.get(key, lambda: dressing.offer(call, _specs(agent, catalogue, tools)), _offer_size)

    def _language(self, header: str) -> str:
        spoken = _LANGUAGE.match(header) if header else None
        return spoken[1] if spoken is not None else _NO_LANGUAGE

    def _date(self) -> str:
        """The day, by UTC: a finer clock would re-write the provider's prompt cache at every call."""
        day = int(self._wall() // 86_400)
        if day != self._day[0]:
            self._day = day, time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
        return self._day[1]


class _Dressing:
    """`stack.Dressing` for one call."""

    def __init__(self, layering: Layering, call: Call, agent: Agent | None, policy: Policy, card: ModelCard) -> None:
        self._layering = layering
        self._call = call
        self._agent = agent
        self._policy = policy
        self._card = card

    def leading(
        self, of: tuple[Hashable, ...], clients: tuple[Message, ...], texts: Callable[[], tuple[str, str]]
    ) -> Message:
        return self._layering.leading(of, clients, texts)

    def written(self, item: Message) -> Message:
        return msgspec.structs.replace(item, wire=write_message(item))

    def beside(self, text: str, item: Message) -> Message:
        return dressing.beside(text, item)

    def plain(self, item: Message) -> Message:
        return dressing.plain(item)

    def offer(self, catalogue: Catalogue, tools: tuple[str, ...] = ()) -> Offer | None:
        if self._agent is None or dressing.barred(self._call):
            return None
        return self._layering.offer(self._call, self._agent, catalogue, tools)

    def effort(self, level: Effort | None, own: Members) -> Members:
        if level is None:
            return UNCHANGED
        fields = self._call.fields
        stated = {**fields, **{name: raw for name, raw in own.items() if raw is not None}} if own else fields
        return effort_members(level, self._card, self._policy, stated, self._call.max_output)


def references(step: RunTools) -> frozenset[str]:
    """The whole results that the calls of `step` ask for."""
    wanted = (results_tool.asked(call.arguments) for call in step.calls if call.name == READ_TOOL_RESULT)
    return frozenset(what.reference for what in wanted if what is not None)


def answered(step: RunTools, stack: Stack, wholes: Mapping[str, str | None] = UNKNOWN) -> tuple[Ran, ...]:
    """The answers of our tools, one for each call; what one call loads, the next has already. `wholes` are the texts
    that this caller has under the `references` of the step."""
    slugs = tuple(entry.slug for entry in step.catalogue)
    loaded = step.loaded
    found: list[Ran] = []
    for call in step.calls:
        if call.name in PAUSING:
            first = all(ran.pause is None for ran in found)
            found.append(questions.answer(call.id, call.name, call.arguments, alone=step.alone, first=first))
            continue
        if call.name == READ_TOOL_RESULT:
            what = results_tool.asked(call.arguments)
            found.append(Ran(text=results_tool.answer(what, wholes.get(what.reference) if what is not None else None)))
            continue
        told = skills_tool.answer(call.arguments, stack.shelf, stack.user, slugs, loaded)
        loaded |= {told.skill} if told.skill is not None else frozenset()
        found.append(Ran(text=told.text, skill=told.skill))
    return tuple(found)


def _specs(agent: Agent, catalogue: Catalogue, tools: tuple[str, ...]) -> tuple[Spec, ...]:
    skills = catalogue if LOAD_SKILL in agent.tools else ()
    return (
        *((skills_tool.spec([entry.slug for entry in skills]),) if skills else ()),
        *((results_tool.spec(),) if READ_TOOL_RESULT in tools else ()),
        *questions.specs(tools),
    )


class _Kept(Generic[T]):
    """What was made lately, by what it was made of, within a bound of bytes."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[T]] = {}
        self._size = 0

    def get(self, key: tuple[Any, ...], make: Callable[[], T], size: Callable[[T], int]) -> T:
        # One look: an explanation is made in the worker, and the loop may forget everything meanwhile.
        found = self._made.get(key)
        if found is not None:
            return found[0]
        made = make()
        weight = size(made)
        if len(self._made) >= _WRITTEN or self._size + weight > _BYTES:
            self._made.clear()
            self._size = 0
        if weight <= _BYTES:
            self._made[key] = (made,)
            self._size += weight
        return made


def _message_size(item: Message) -> int:
    return len(item.wire or b"")


def _offer_size(offer: Offer | None) -> int:
    return sum(len(raw or b"") for raw in offer.members.values()) if offer is not None else 0
