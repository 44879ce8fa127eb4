"""`load_skill`: how a model asks for the text of a skill, and what it is answered.

Belongs here: the tool's definition and its answer, a function of the arguments and of what the caller may see now.
Never: which skills a catalogue holds (`core.layers`) or remembering what was loaded. A skill that the caller may not
see, one of another organisation and one that never was are answered in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.core.agent import Shelf, Skill, Spec
from proxy.core.layers import LOAD_SKILL
from proxy.tools.skill_files import unfit

_TOLD: Final = (
    "Load the full instructions of one of the skills that are listed for you. Call it before you begin work that a "
    "skill's description fits, then follow what it says. Each skill needs to be loaded once."
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model reads; `skill` is the id of the one that was loaded by this call, if one was."""

    text: str
    skill: str | None = None


class _Asked(msgspec.Struct, frozen=True):
    name: str


_ASKED: Final = msgspec.json.Decoder(_Asked | str)


def spec(slugs: Sequence[str]) -> Spec:
    """The tool for a catalogue of `slugs`. Raises ValueError where it is empty: without skills there is no tool."""
    if not slugs:
        raise ValueError("an empty catalogue has no tool")
    name = {"type": "string", "enum": list(slugs), "description": "The skill to load."}
    schema = {"type": "object", "properties": {"name": name}, "required": ["name"], "additionalProperties": False}
    return Spec(name=LOAD_SKILL, description=_TOLD, parameters=msgspec.json.encode(schema))


def answer(arguments: str, shelf: Shelf, user: str | None, catalogue: Sequence[str], loaded: frozenset[str]) -> Answer:
    """Answer a call. `shelf` is the caller's organisation's now, `catalogue` the slugs that the conversation's tool
    names, `loaded` the ids of the skills whose text the model has before it. Never raises."""
    slug = _slug(arguments)
    offered = [each for each in catalogue if (found := shelf.get(each)) is not None and _open(found, user)]
    choice = f"The skills are: {', '.join(offered)}." if offered else "There is no skill to load at present."
    if slug is None:
        return Answer(text=f'Nothing was loaded: the arguments must be a JSON object such as {{"name": ...}}. {choice}')
    skill = shelf.get(slug)
    if skill is None or not skill.seen_by(user) or not (skill.id in loaded or (slug in catalogue and skill.offered)):
        named = f' "{slug}"' if unfit(slug) is None else " of this name"
        return Answer(text=f"Nothing was loaded: there is no skill{named}. {choice}")
    if not skill.published:
        return Answer(text=f'Nothing was loaded: the skill "{slug}" is not published at present. {choice}')
    if skill.id in loaded:
        return Answer(text=f'The skill "{slug}" is loaded already above; follow it.')
    return Answer(text=skill.text, skill=skill.id)


def _open(skill: Skill, user: str | None) -> bool:
    """Whether a caller would be given it."""
    return skill.seen_by(user) and skill.published and skill.offered


def _slug(arguments: str) -> str | None:
    """The name that the model asks for; a slash before it is how people write it, and a bare string is plain enough."""
    try:
        asked = _ASKED.decode(arguments)
    except (ValueError, RecursionError):  # no JSON, none of this form, a lone surrogate; too deep
        return None
    name = asked if isinstance(asked, str) else asked.name
    return name.strip().removeprefix("/")
