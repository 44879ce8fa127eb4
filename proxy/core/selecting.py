"""Which skills a call has: those its user selected, those its agent offers, those the history holds already.

Belongs here: who may see a skill and what a turn began with. Never: where its text stands in a prompt (`layers`), nor
what a skill is (`agent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from proxy.core.agent import Shelf, Skill
from proxy.core.conversation import Message
from proxy.core.errors import Conflict, Malformed, NotFound
from proxy.core.hidden import Placed
from proxy.core.policy import matches
from proxy.core.replayed import LOAD_SKILL
from proxy.core.stack import Catalogue, Entry, Stack, Trace

MOST_SELECTED: Final = 64
"""Skills that one turn may begin with. Each is loaded whole, so that a few words become a prompt of megabytes."""
BESIDE: Final = 4 * 1024 * 1024
"""Characters of skills that are told beside the messages of one history, the newest first."""
_NAMED: Final = 64
"""Characters of a client's that a refusal repeats."""


def opened_with(
    stack: Stack, messages: Sequence[Message], opening: Sequence[int], turn: Sequence[Placed]
) -> tuple[Skill, ...]:
    """The skills of the newest turn: those that are recorded, and what its user wrote behind that message."""
    written = [index for index in opening if messages[index].slugs]
    if not turn:
        return _chosen(stack, [messages[index] for index in written])
    known = max((each.index for each in turn if recorded((each,))), default=-1)
    resumed = _resumed(stack, recorded(turn))
    chosen = _chosen(stack, [messages[index] for index in written if index > known])
    return tuple({skill.id: skill for skill in (*resumed, *chosen)}.values())


def _chosen(stack: Stack, opening: Iterable[Message]) -> tuple[Skill, ...]:
    """The skills that the newest turn begins with. One refusal refuses the request: nothing is sent or written."""
    slugs = dict.fromkeys([slug for item in opening for slug in item.slugs])
    if len(slugs) > MOST_SELECTED:
        raise Malformed(f"At most {MOST_SELECTED} skills can be selected.", code="out_of_range", param="messages")
    return tuple([_resolved(stack, slug, stack.shelf.get(slug)) for slug in slugs])


def _resumed(stack: Stack, traces: tuple[Trace, ...]) -> tuple[Skill, ...]:
    """The skills that the turn began with, by what was recorded then; whether they may be seen is looked at again."""
    by_id = {skill.id: skill for skill in stack.shelf.values()} if traces else {}
    return tuple(_resolved(stack, slug_of(trace.id), by_id.get(trace.id)) for trace in traces)


def _resolved(stack: Stack, slug: str, skill: Skill | None) -> Skill:
    """Raises NotFound for one that is unknown or invisible, which are never told apart; then Conflict."""
    if skill is None or not skill.seen_by(stack.user):
        # Escaped: who only sees a slug in disguise could not tell it from one that exists.
        told = slug.encode("ascii", "backslashreplace").decode()[:_NAMED]
        raise NotFound(f"The skill /{told} does not exist here.", code="skill_not_found", param="messages")
    if not skill.published:
        raise Conflict(f"The skill /{slug} is not published.", code="skill_not_published", param="messages")
    return skill


def offered_to(stack: Stack) -> Catalogue:
    """The skills that the agent offers to this caller now, in the order of its list."""
    agent = stack.agent
    if agent is None or LOAD_SKILL not in agent.tools:
        return ()
    slugs = sorted(stack.shelf)
    listed = dict.fromkeys(slug for pattern in agent.skills for slug in _fitting(pattern, stack.shelf, slugs))
    found = (stack.shelf[slug] for slug in listed)
    return tuple(
        Entry(slug=skill.slug, when=skill.when)
        for skill in found
        if skill.offered and skill.published and skill.seen_by(stack.user)
    )


def _fitting(pattern: str, shelf: Shelf, slugs: Sequence[str]) -> Iterable[str]:
    """Those of `slugs`, all of the shelf, that `pattern` names."""
    if "*" in pattern or "?" in pattern:
        return slugs if pattern == "*" else [slug for slug in slugs if matches(pattern, slug)]
    return (pattern,) if pattern in shelf else ()


def slug_of(id: str) -> str:
    """The slug in a skill's id."""
    return id.rpartition("/")[2]


def used_in(
    stack: Stack, messages: tuple[Message, ...], behind: Sequence[Placed], beside: Mapping[int, tuple[Skill, ...]]
) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]:
    """Every skill in the history with the message it came with; and those whose text is told there."""
    agent = stack.agent
    if agent is None or not agent.skills:
        return (), ()
    found = [(index, skill.id) for index, item in enumerate(messages) if item.slugs for skill in _still(stack, item)]
    if not behind and not beside:
        return tuple(sorted(found)), ()
    loads = [
        (each, each.reply, trace.id)
        for each in behind
        for trace in each.state.traces
        if each.reply is not None and trace.kind == "SKILL_LOAD" and each.told_whole(messages)
    ]
    # The text of a skill does not enter memory: in the next turn it is loaded again.
    present = [(index, id) for each, index, id in loads if each.opened or agent.memory is None]
    used = tuple(sorted({*found, *((index, id) for _, index, id in loads)}))
    present += [(index, skill.id) for index, skills in beside.items() for skill in skills]
    return used, tuple(sorted(set(present)))


def told_beside(stack: Stack, messages: tuple[Message, ...]) -> Mapping[int, tuple[Skill, ...]]:
    """The skills that are told beside their messages, within a bound that no window holds: a client can send any
    history, and a word of it stands for a whole text."""
    agent = stack.agent
    found: dict[int, tuple[Skill, ...]] = {}
    if agent is None or agent.place != "message" or not agent.skills:
        return found
    left = BESIDE
    for index in reversed([index for index, item in enumerate(messages) if item.slugs]):
        skills = _still(stack, messages[index])
        left -= sum(len(skill.text) for skill in skills)
        if left < 0 and found:
            break
        if skills:
            found[index] = skills
    return found


def _still(stack: Stack, item: Message) -> tuple[Skill, ...]:
    """The skills that `item` selects, as far as they may be told."""
    known = (stack.shelf.get(slug) for slug in item.slugs[:MOST_SELECTED])
    return tuple(skill for skill in known if skill is not None and skill.published and skill.seen_by(stack.user))


def recorded(turn: Iterable[Placed]) -> tuple[Trace, ...]:
    """What a turn with the hidden states `turn` was begun with."""
    return tuple(trace for each in turn for trace in each.state.traces if trace.kind == "SKILL_SELECT")
