"""The keys of agents, prompts and skills in configuration files: names, ranges and defaults.

Belongs here: what each key may say. Never: what several of them say together, other files that one names, and what an
agent does. A key of an agent is stated here and put into `core.agent.Agent` by `proxy.agents`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proxy.configfile import did_you_mean
from proxy.configfile.fields import Pattern, Section, switch
from proxy.core.agent import ANYBODY
from proxy.core.effort import LEVELS, Effort

MAX_TEXT: Final = 256 * 1024
"""Bytes of one prompt. More leaves a small model no room for a conversation, and is a mistake with a large one."""

Tool = Literal["load_skill", "read_tool_result", "ask_user", "request_approval"]

_TOOLS: Final[tuple[str, ...]] = get_args(Tool)
_SLUG: Final = r"^[a-z0-9*?-]{1,64}$"


def _one_of(words: Collection[str], what: str) -> BeforeValidator:
    def known(value: object) -> object:
        if isinstance(value, str) and value not in words:
            raise ValueError(f"unknown {what}" + (did_you_mean(value, words) or f"; there are {', '.join(words)}"))
        return value

    return BeforeValidator(known)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_text(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


def _writable(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no text") from None
    if size > MAX_TEXT:
        raise ValueError(f"is larger than {MAX_TEXT} bytes")
    return text


Slug = Annotated[str, Field(pattern=_SLUG)]
Slugs = Annotated[
    tuple[Slug, ...], Field(max_length=1000), BeforeValidator(_listed, json_schema_input_type=tuple[Slug, ...] | Slug)
]
Patterns = Annotated[
    tuple[Pattern, ...],
    Field(max_length=1000),
    BeforeValidator(_listed, json_schema_input_type=tuple[Pattern, ...] | Pattern),
]
Known = Annotated[Tool, _one_of(_TOOLS, "tool")]
Tools = Annotated[tuple[Known, ...], BeforeValidator(_listed, json_schema_input_type=tuple[Tool, ...] | Tool)]


class PromptSettings(Section):
    """A prompt: the text itself, or the file that holds it."""

    file: Annotated[Path | None, Field(json_schema_extra={"minLength": 1})] = None
    """Path of a UTF-8 file, relative to the file that names it; read again whenever it changes."""
    text: Annotated[str, AfterValidator(_writable)] | None = None
    """The text as it is: only {agent}, {date}, {tenant} and {language} are replaced."""

    @model_validator(mode="after")
    def _one(self) -> PromptSettings:
        if (self.file is None) == (self.text is None):
            raise ValueError("should be a text, or name one of file and text")
        return self


Prompted = Annotated[PromptSettings, BeforeValidator(_as_text, json_schema_input_type=PromptSettings | str)]


class MemorySettings(Section):
    """How much of earlier turns the model is told again; the newest turn is told word for word."""

    turns: Annotated[int, Field(ge=1, le=1000)] = 20
    """Earlier turns that are told, counted from the latest compaction in use."""
    calls: Annotated[int, Field(ge=0, le=1000)] = 8
    """Tool calls of each: failures and unanswered ones, then the newest. The rest are counted in a line."""
    result_turns: Annotated[int, Field(ge=0, le=1000)] = 3
    """The latest turns of these, whose tool results are told; of older ones whether a call succeeded."""
    result_chars: Annotated[int, Field(ge=200, le=1_000_000)] = 400
    """Characters of each such result: head and tail, and how the whole can be read, where that tool is offered."""
    argument_chars: Annotated[int, Field(ge=20, le=1_000_000)] = 400
    """Characters of each string in a call's arguments."""
    step: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Turns after which these limits move on; up to one less may be told beyond them. 1: with every turn. Unless stated
    1 where the model has no price for cached tokens, else when it pays, at the latest after 40 turns."""
    leaving: Literal["fold", "drop"] = "fold"
    """What becomes of older turns: fold puts notes in their place, drop leaves nothing."""


Remembering = Annotated[MemorySettings | None, switch(MemorySettings)]


class VisibleTo(Section):
    """Who knows that an agent exists; for everybody else its name is a name like any other."""

    tenants: Patterns = ANYBODY
    """Names or patterns of tenants."""
    users: Patterns = ANYBODY
    """Names or patterns of end users; one that a request does not name fits "*" alone."""


class AgentSettings(Section):
    """A virtual model: a model with instructions, skills, an effort and tools."""

    model: Pattern
    """The name of `models` that it leads to."""
    instructions: Prompted | None = None
    """What its author tells the model, before anything a client says."""
    client_system: Literal["after", "before", "refuse"] = "after"
    """Where the client's own leading system messages go, seen from the instructions; refuse: a request with one is."""
    skills: Slugs = ()
    """Slugs or patterns of the skills it may load: its catalogue."""
    skills_place: Literal["system", "message"] = "system"
    """Where a selected skill goes: the system message, or beside the message that selects it, which keeps caches."""
    effort: Annotated[Effort | None, _one_of(LEVELS, "effort")] = None
    """How hard the model thinks where the message does not say; left out where the model cannot reason."""
    tools: Tools = ("load_skill",)
    """The gateway's own tools that are offered."""
    memory: Remembering = MemorySettings()
    """How much of earlier turns the model is told again; off: all of them, word for word."""
    visible_to: VisibleTo = VisibleTo()


class SkillsSettings(Section):
    """Where skills are kept."""

    folders: Annotated[
        tuple[Path, ...],
        Field(max_length=100),
        BeforeValidator(_listed, json_schema_input_type=tuple[Path, ...] | Path),
    ] = ()
    """Folders with one folder per tenant, or shared/, and in it one folder per skill; relative to this file."""
