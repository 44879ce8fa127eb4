"""What an operator puts around a conversation, and where in the prompt it stands.

    base, conventions | instructions | the client's own system messages | selected skills | catalogue | the conversation

Every model call of a turn reads the same stack; where nothing is added, nothing is touched. Layers dress a prompt that
is otherwise ready: identities, notes and pins are made of what was shown, never of this. Prompt text is literal but for
`{name}` of a closed set; equal calls get equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from proxy.core.agent import Agent, Effort, Skill
from proxy.core.chain import message
from proxy.core.conversation import SYSTEM, Message, Text
from proxy.core.errors import Malformed
from proxy.core.fence import NOTES, unfenced
from proxy.core.groups import newest
from proxy.core.hidden import Behind, Expansion, Placed, expansion, told
from proxy.core.past import Past
from proxy.core.pauses import ASK_USER, REQUEST_APPROVAL, attached, just_answered
from proxy.core.replayed import LOAD_SKILL as LOAD_SKILL
from proxy.core.replayed import READ_TOOL_RESULT
from proxy.core.selecting import offered_to, opened_with, recorded, slug_of, told_beside, used_in
from proxy.core.stack import UNCHANGED, Catalogue, Dressing, Members, Offer, Stack, Standing, Trace

_FACT: Final = re.compile(r"\{(agent|date|tenant|language)\}")
_BREAK: Final = "\n\n"
_CONVENTIONS: Final = (
    "How this conversation is kept:\n"
    f"- A message that begins with <{NOTES}> holds notes of earlier turns that no longer fit. They are a record of "
    "what was said and done, not a new request.\n"
    '- "[... characters were left out here by the gateway ...]" marks the place where a long text was cut.\n'
    f"- A reference (res_ and letters) names the whole of such a text; {READ_TOOL_RESULT}, if you have it, reads it.\n"
    '- In earlier turns lines such as "(Succeeded; not shown.)" and "(3 earlier calls are not shown.)" stand for calls '
    "and results that there were. They are nothing to write yourself.\n"
    f"- The result of {ASK_USER} or {REQUEST_APPROVAL} is what the user wrote next, word for word."
)
_SELECTED: Final = "The user selected these skills for the request that begins with their names. Follow them."
_CATALOGUE: Final = (
    f"Skills that can be loaded with {LOAD_SKILL}, each with when to use it. Load one before you answer a request that "
    "it is made for."
)
_ALL: Final = 1 << 62
_NOTHING: Final = Expansion()
_KEPT: Final = Behind()
_ASKED: Final = "Skills used in the turns that these notes cover: "

Piece = tuple[Literal["base", "conventions", "instructions", "client_system", "skills", "catalogue"], str]
"""A part of the leading message: the layer that it is, and what it says."""
CLIENTS: Final[Piece] = ("client_system", "")


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """What one call adds. `leading` stands for the client's first `replaced` system messages, `rounds` are the tool
    rounds of this call so far, `effort` is the level that holds; `kept` is what has been decided for the turn and is to
    be remembered; `used` are the skills in the history, `present` those whose text is told there, each id with the
    index of its message."""

    leading: Message | None = None
    replaced: int = 0
    expansions: Mapping[int, Expansion] = MappingProxyType({})
    rounds: tuple[Message, ...] = ()
    offer: Offer | None = None
    members: Members = UNCHANGED
    effort: Effort | None = None
    catalogue: Catalogue = ()
    selected: tuple[Skill, ...] = ()
    kept: Behind = Behind()
    used: tuple[tuple[int, str], ...] = ()
    present: tuple[tuple[int, str], ...] = ()
    dressing: Dressing | None = None
    extra: int = 0
    """Estimated tokens that all of it adds to the messages of the history, own tools left aside."""

    def loaded(self, first: int) -> frozenset[str]:
        """The ids of the skills whose text a prompt holds of which message `first` of the history is the first."""
        return frozenset(id for index, id in self.present if index >= first) | {skill.id for skill in self.selected}

    @property
    def own(self) -> frozenset[str]:
        """The names of the tools that the gateway answers itself."""
        return self.offer.names if self.offer is not None else frozenset()

    def told(self, assembled: tuple[Message, ...], kept: Sequence[int], notes: int | None) -> tuple[Message, ...]:
        """`assembled` as it is told. Its last messages are those of the history at the indices `kept`; `notes` is the
        place of the notes in it."""
        if self.leading is None and not (self.expansions or self.rounds or self.used):
            return assembled
        first = len(assembled) - len(kept)
        # System messages that notes leave standing come behind the leading ones, and are not in that one message.
        told = [self.leading] if self.leading is not None else []
        staying = self._staying(kept) if notes is not None else []
        for place in range(self.replaced, len(assembled)):
            item = assembled[place]
            if place == notes:
                told.append(self._noted(item, kept[0] if kept else _ALL))
            elif place < first or not self.expansions:
                told.append(item)
            else:
                index = kept[place - first]
                while staying and staying[0][0] < index:
                    told += staying.pop(0)[1]
                told += self._expanded(item, self.expansions.get(index))
        return (*told, *self.rounds)

    def _staying(self, kept: Sequence[int]) -> list[tuple[int, tuple[Message, ...]]]:
        """What is told of messages that are not, each with its place in the history: of the turn that is cut in two,
        whose opening is told."""
        found = [
            (index, each.stays)
            for index, each in self.expansions.items()
            if each.stays and kept and index > kept[0] and index not in kept
        ]
        return sorted(found, key=itemgetter(0))

    def _expanded(self, item: Message, found: Expansion | None) -> Iterable[Message]:
        if found is None:
            return (item,)
        if found.gone:
            return (*found.before, *found.behind)
        middle = found.instead or item
        if found.beside and self.dressing is not None:
            middle = self.dressing.beside(found.beside, middle)
        return (*found.before, middle, *found.behind)

    def _noted(self, item: Message, first: int) -> Message:
        """The notes with the names of the skills that went with the turns before message `first`."""
        names = dict.fromkeys(slug_of(id) for index, id in self.used if index < first)
        if not names:
            return item
        return message("user", (*item.blocks, Text(text=_ASKED + ", ".join(names))))

    def added(self, index: int, item: Message) -> int:
        """Estimated tokens that are told at the place of `item`, message `index` of the history, beyond its own, and
        leave with it: fewer than none where less is told."""
        found = self.expansions.get(index)
        if found is None:
            return 0
        more = _tokens((*found.before, *found.behind)) - _fixed(found)
        if found.gone:
            return more - item.tokens
        return more + (found.instead.tokens - item.tokens if found.instead is not None else 0)


NONE: Final = Layers()
"""Nothing is added."""


def layered(stack: Stack, past: Past, behind: tuple[Placed, ...], *, settled: bool = False) -> Layers:
    """The layers of a call with the history `past`, which has the hidden state `behind`; where it is `settled`, its
    newest turn is over, and what that began with is not told. Raises NotFound or Conflict for a skill that cannot be
    selected, Malformed for a system message where the agent's author refuses those."""
    agent = stack.agent
    messages = past.messages
    opening = () if settled else newest(messages)
    if settled:
        behind = tuple([msgspec.structs.replace(each, opened=False) for each in behind])
    turn = [each for each in behind if each.opened]
    chosen: tuple[Skill, ...] = ()
    if agent is not None and agent.skills:
        chosen = opened_with(stack, messages, opening, turn)
    held = stack.standing or standing(stack)
    known = [each.state.catalogue for each in behind if each.state.catalogue is not None]
    listed = known[0] if known else held.catalogue
    tools = _tools(agent, behind)
    offer = stack.dressing.offer(listed, tools) if listed or tools else None
    asked = stack.stated or _last_effort(turn)
    effort = asked or (agent.effort if agent is not None else None)
    beside = told_beside(stack, messages)
    used, present = used_in(stack, messages, behind, beside)
    leading, replaced = _leading(stack, held, messages, chosen, listed if offer is not None else ())
    return _weighed(
        messages,
        Layers(
            leading=leading,
            replaced=replaced,
            expansions=_expansions(messages, behind, beside),
            offer=offer,
            members=_members(stack, offer, effort),
            effort=effort,
            catalogue=listed,
            selected=chosen,
            kept=_kept(agent, behind, chosen, asked, listed, tools, resumed=just_answered(messages)),
            used=used,
            present=present,
            dressing=stack.dressing,
        ),
    )


def _kept(
    agent: Agent | None,
    behind: Sequence[Placed],
    chosen: tuple[Skill, ...],
    effort: Effort | None,
    listed: Catalogue,
    tools: tuple[str, ...],
    *,
    resumed: bool,
) -> Behind:
    """What of it the history does not record yet. What stands behind its last message came with another answer to this
    very request, which the client may not go on with: that is recorded again."""
    before = [each for each in behind if not each.again]
    turn = [each for each in before if each.opened]
    frozen = bool([True for each in before if each.state.catalogue is not None])
    decided = bool([True for each in before if each.state.tools is not None])
    offers = agent is not None and bool(agent.skills) and LOAD_SKILL in agent.tools
    selections = [Trace(kind="SKILL_SELECT", id=skill.id) for skill in chosen]
    begun = recorded(turn) if turn else ()
    spoken = next((each.state for each in behind if each.again and each.state.ahead), _KEPT)
    return Behind(
        traces=tuple([trace for trace in selections if trace not in begun]),
        effort=effort if effort != _last_effort(turn) else None,
        catalogue=listed if offers and not frozen else None,
        tools=tools if agent is not None and (tools or agent.memory is not None) and not decided else None,
        resumed=resumed,
        ahead=spoken.ahead,
        spoken=spoken.spoken,
    )


def _tools(agent: Agent | None, behind: Sequence[Placed]) -> tuple[str, ...]:
    """The own tools that need no skill, as they were when the conversation began: what memory says of whole results
    holds only where they can be asked for."""
    if agent is None:
        return ()
    known = [each.state.tools for each in behind if each.state.tools is not None]
    return known[0] if known else tuple([name for name in agent.tools if name != LOAD_SKILL])


def _last_effort(turn: Sequence[Placed]) -> Effort | None:
    return next((each.state.effort for each in reversed(turn) if each.state.effort), None)


def rounded(layers: Layers, rounds: Iterable[Message], *, offered: bool = True) -> Layers:
    """`layers` with another tool round behind it; where nothing is `offered` any more, the model has to answer."""
    more = tuple(rounds)
    extra = layers.extra + _tokens(more)
    members = layers.members if offered else {**layers.members, "tool_choice": b'"none"'}
    return msgspec.structs.replace(layers, rounds=(*layers.rounds, *more), extra=extra, members=members)


def _weighed(messages: tuple[Message, ...], layers: Layers) -> Layers:
    extra = 0
    if layers.leading is not None:
        extra += layers.leading.tokens - _tokens(messages[: layers.replaced])
    for index, found in layers.expansions.items():
        extra += layers.added(index, messages[index]) + _fixed(found)
    return msgspec.structs.replace(layers, extra=extra)


def remembering(layers: Layers, expansions: Mapping[int, Expansion], net: int) -> Layers:
    """`layers` with the memory of earlier turns in place of what is told at the places of their messages: `net` tokens
    more."""
    return msgspec.structs.replace(layers, expansions=expansions, extra=layers.extra + net)


def _tokens(messages: Iterable[Message]) -> int:
    return sum(item.tokens for item in messages)


def _fixed(found: Expansion) -> int:
    """Tokens that a new compaction cannot take away: it leaves the request of the open turn."""
    return _tokens(found.stays) if found.opened else 0


def _members(stack: Stack, offer: Offer | None, effort: Effort | None) -> Members:
    own = offer.members if offer is not None else UNCHANGED
    if stack.agent is None:
        return own
    told = stack.dressing.effort(effort, own)
    return {**own, **told} if told else own


# -- the leading message ----------------------------------------------------------------------------------------------


def standing(stack: Stack) -> Standing:
    """What of `stack` does not depend on the history."""
    agent = stack.agent
    author = _filled(agent.instructions, stack.facts) if agent is not None else ""
    return Standing(_filled(stack.base, stack.facts), author, offered_to(stack))


def _leading(
    stack: Stack, held: Standing, messages: tuple[Message, ...], chosen: tuple[Skill, ...], listed: Catalogue
) -> tuple[Message | None, int]:
    """The one system message in front, and how many of the client's it stands for."""
    agent = stack.agent
    lead = _lead(messages)
    if agent is not None and agent.client_system == "refuse" and lead:
        raise Malformed("This agent takes no system message.", code="invalid_messages", param="messages[0]")
    selected = chosen if agent is not None and agent.place == "system" else ()
    if not (held.base or held.author or selected or listed):
        return None, 0

    def texts() -> tuple[str, str]:
        parts = pieces(stack, held, selected, listed)
        place = parts.index(CLIENTS)
        return _text(text for _, text in parts[:place]), _text(text for _, text in parts[place:])

    return stack.dressing.leading((held, selected, listed), messages[:lead], texts), lead


def pieces(stack: Stack, held: Standing, selected: tuple[Skill, ...], listed: Catalogue) -> tuple[Piece, ...]:
    """The named texts of the leading message, in order, with CLIENTS at the place of what the client's own system
    messages say. `selected` are the skills that stand in it."""
    chosen = {skill.slug for skill in selected}
    left = tuple(each for each in listed if each.slug not in chosen)
    base: tuple[Piece, ...] = (("base", held.base), ("conventions", _CONVENTIONS))
    skills = _skills_text(selected) if selected else ""
    last: tuple[Piece, ...] = (("skills", skills), ("catalogue", _catalogue_text(left)))
    if stack.agent is not None and stack.agent.client_system == "before":
        return (*base, CLIENTS, ("instructions", held.author), *last)
    return (*base, ("instructions", held.author), CLIENTS, *last)


def _text(parts: Iterable[str]) -> str:
    return _BREAK.join(part for part in parts if part)


def _filled(text: str, facts: Mapping[str, str]) -> str:
    """`text` with its names replaced; every other brace stays as it is."""
    return _FACT.sub(lambda name: facts.get(name[1], name[0]), text).strip()


def _skills_text(chosen: tuple[Skill, ...]) -> str:
    return _BREAK.join((_SELECTED, *(skill.text for skill in chosen)))


def _catalogue_text(listed: Catalogue) -> str:
    if not listed:
        return ""
    return "\n".join((_CATALOGUE, *(f"- {each.slug}: {unfenced(each.when)}" for each in listed)))


# -- what is told besides the shown messages --------------------------------------------------------------------------


def _expansions(
    messages: tuple[Message, ...], behind: Sequence[Placed], beside: Mapping[int, tuple[Skill, ...]]
) -> Mapping[int, Expansion]:
    found = {each.reply: expansion(each, messages) for each in behind if each.reply is not None and each.speaks}
    for each in behind:
        media = attached(each.answer) if each.answer is not None else None
        if media is not None and each.reply is not None:
            found[each.reply + 1] = Expansion(behind=(media,))
    for each in behind:
        if each.state.ahead:
            found[each.index + 1 - each.state.spoken] = Expansion(before=tuple(map(told, each.state.ahead)))
    for index, skills in beside.items():
        found[index] = msgspec.structs.replace(found.get(index) or _NOTHING, beside=_skills_text(skills))
    return found


def _lead(messages: Sequence[Message]) -> int:
    """How many system messages stand in front."""
    return next((index for index, item in enumerate(messages) if item.role not in SYSTEM), len(messages))
