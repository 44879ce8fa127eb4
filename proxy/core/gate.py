"""Whether a model's answer may stand for history. Better no narrative than a wrong one: the built-in notes need none.

Judged by structure, in any language: it ended by itself, is text, calls nothing, has the headings, is shorter than what
it replaces, is in the user's script, and neither repeats what it was shown nor carries it on. What passes comes out
merged with the narrative before it, bounded, sealed, with no reference that nobody gave.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from proxy.core.conversation import Reasoning
from proxy.core.fence import SECTIONS, defused
from proxy.core.headings import Parsed, parse, thoughtless
from proxy.core.language import written_in
from proxy.core.measure import estimate
from proxy.core.narrative import NONE, Narrative, carried, fitted, known_only, read, rendered, updated
from proxy.core.quoting import Redact
from proxy.core.steps import Reply
from proxy.core.summary import Request, instructions
from proxy.core.symptoms import continues, declines, repeats, tool_syntax

_ENDED: Final = frozenset({"stop", "end_turn", "stop_sequence", "eos", "completed"})
_CALLED: Final = frozenset({"tool_calls", "function_call", "tool_use"})
_FILTERED: Final = frozenset({"content_filter", "refusal", "safety", "prohibited_content", "recitation", "blocklist"})
_LEAST_HEADINGS: Final = 4
"""Of the seven: a model may leave out those it has nothing for, but not most."""
_TOO_LONG: Final = 2.0
"""Times the allowed size: from here on trimming would decide what survives, not the model."""
_LONGEST: Final = 400_000
"""Characters that are looked at."""


class Refusal(StrEnum):
    """Why an answer was not taken."""

    UNFINISHED = "unfinished"
    EMPTY = "empty"
    REASONING_ONLY = "reasoning_only"
    REFUSED = "refused"
    TOOL_CALL = "tool_call"
    TOOL_SYNTAX = "tool_syntax"
    NO_HEADINGS = "no_headings"
    TOO_LONG = "too_long"
    NOT_SHORTER = "not_shorter"
    WRONG_SCRIPT = "wrong_script"
    CONTINUES = "continues"
    REPEATS = "repeats"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A summary model's answer. `finish` is how it ended, None where it did not; `calls` counts its tool calls,
    `reasoned` says whether it thought aloud, `declined` what it gave as a refusal apart from its text."""

    text: str
    finish: str | None
    calls: int = 0
    reasoned: bool = False
    declined: str = ""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was not taken. `worth_retrying`: the same request may well be answered better."""

    reason: Refusal
    worth_retrying: bool

    @property
    def refused(self) -> str:
        return self.reason.value


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The narrative that now stands for everything covered. `kept` names the sections that the answer left out or empty
    and that stayed as they were; `headings` counts those it had."""

    narrative: str
    headings: int
    kept: tuple[str, ...] = ()

    @property
    def refused(self) -> str:
        return ""


def answer(reply: Reply) -> Answer:
    """What `judge` looks at in a reply."""
    blocks = reply.message.blocks if reply.message is not None else ()
    return Answer(
        text=reply.message.text if reply.message is not None else "",
        finish=reply.finish,
        calls=len(reply.message.calls) if reply.message is not None else 0,
        reasoned=any(type(block) is Reasoning and block.text.strip() for block in blocks),
    )


def judge(
    given: Answer, asked: Request, *, redact: Redact = str, present: frozenset[str] = frozenset()
) -> Accepted | Rejected:
    """Take `given` as the narrative that `asked` asked for, or say why not. `present` are identifiers that the prompt
    holds elsewhere (pins, ledger, tail) and that need not be carried."""
    text = thoughtless(given.text[:_LONGEST])
    reason = _unfit(given, text)
    parsed = parse(known_only(redact(text or ""), asked.known))
    reason = reason or _foreign(text or "", parsed, asked)
    if reason is not None:
        return Rejected(reason=reason, worth_retrying=_again(reason, given))
    before = read(asked.previous)
    said = Narrative(bodies=tuple(map(_safe, parsed.narrative.bodies)))
    if all(body in ("", NONE) for body in said.bodies):
        return Rejected(reason=Refusal.EMPTY, worth_retrying=True)
    if not written_in("\n".join(said.bodies), asked.scripts):
        return Rejected(reason=Refusal.WRONG_SCRIPT, worth_retrying=True)
    merged = carried(before, updated(before, said), asked.max_tokens, present)
    narrative = rendered(fitted(merged, asked.max_tokens))
    kept = (
        title for title, old, new in zip(SECTIONS, before.bodies, said.bodies, strict=True) if old and new in ("", NONE)
    )
    return Accepted(narrative=narrative, headings=parsed.headings, kept=tuple(kept))


def _unfit(given: Answer, text: str | None) -> Refusal | None:
    """What is wrong with an answer that nobody has read; `text` is it without thoughts, None where those never end."""
    if given.calls or given.finish in _CALLED:
        return Refusal.TOOL_CALL
    if given.finish in _FILTERED or given.declined.strip():
        return Refusal.REFUSED
    if not (text or "").strip():
        if given.reasoned or given.text.strip():
            return Refusal.REASONING_ONLY
        return Refusal.EMPTY if given.finish in _ENDED else Refusal.UNFINISHED
    return None if given.finish in _ENDED else Refusal.UNFINISHED


def _foreign(text: str, parsed: Parsed, asked: Request) -> Refusal | None:
    """Why a finished text is no narrative: what it is instead, or its size."""
    record = [entry.text for entry in asked.part]
    if repeats(text, asked.mark, instructions(), record, asked.previous):
        return Refusal.REPEATS
    if tool_syntax(text):
        return Refusal.TOOL_SYNTAX
    if parsed.headings < _LEAST_HEADINGS and declines(text):
        return Refusal.REFUSED
    if continues(text, parsed):
        return Refusal.CONTINUES
    if parsed.headings < _LEAST_HEADINGS:
        return Refusal.NO_HEADINGS
    size = estimate(text)
    if size > _TOO_LONG * asked.max_tokens:
        return Refusal.TOO_LONG
    return Refusal.NOT_SHORTER if size >= asked.replaces else None


def _again(reason: Refusal, given: Answer) -> bool:
    """Whether asking again may help: not where a filter, a budget or the matter itself decides."""
    if reason is Refusal.UNFINISHED:
        return given.finish != "length"
    return reason not in (Refusal.REFUSED, Refusal.REASONING_ONLY, Refusal.NOT_SHORTER)


def _safe(body: str) -> str:
    return body if body == NONE else defused(body).strip("\n")
