"""`/compact [what to keep]`: the user's own compaction, typed where only messages can be typed.

It is the first line of the last user message with nothing else but what clients put there; anywhere else the same words
are prose. It is answered by one fixed line. The next request brings both messages back: such a pair stays in the shown
chain, is told as nothing, and counts as no turn, pin or language sample. Only the pair counts, never one of the two.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, Literal

import msgspec

from proxy.core.boilerplate import LONGEST, spoken
from proxy.core.conversation import SYSTEM, Approval, Clarification, Message, Text
from proxy.core.notes import Compaction
from proxy.core.render import covered

_COMMAND: Final = re.compile(r"/compact(?:[ \t]+(?P<wish>\S[^\r\n]*))?")
_DONE: Final = "Conversation compacted: "
_NOT: Final = "Not compacted: "
_ANSWER: Final = re.compile(
    r"(?P<done>Conversation compacted: (?:(?:turn 1|turns 1-\d+|the first part of turn \d+)"
    r"(?: and the first part of turn \d+)?|long messages), [\d,]+ -> [\d,]+ tokens\.)"
    r"|Not compacted: (?:there is nothing to compact yet|already compacted, and nothing new was written since"
    r"|the latest turn is running or paused|the message has attachments|the summary failed: [^\n]{1,200})\."
)


class Reason(StrEnum):
    """Why a command was refused."""

    NOTHING_YET = "nothing_yet"
    NOTHING_NEW = "nothing_new"
    RUNNING = "running"
    ATTACHMENTS = "attachments"
    FAILED = "failed"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was given: the message that gives it, what the user asks to keep, and whether files came along."""

    at: int
    wish: str = ""
    attachments: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a command: `line` is the answer, the rest the structured data of the `weirgate` field.

    `turns` whole turns are covered, and with `part` the first part of the next; tokens are projected prompt sizes.
    `reason` and `why` (a few words of ours, for a failed summary) are given where nothing was compacted.
    `summary_display` is the model's account for people: without references, empty where no model wrote one.
    """

    status: Literal["compacted", "not_compacted"]
    line: str
    reason: Reason | None = None
    why: str = ""
    turns: int | None = None
    part: bool | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    compaction_id: str | None = None
    trigger: Literal["MANUAL"] | None = None
    writer: str | None = None
    summary_display: str = ""


def given(messages: tuple[Message, ...]) -> Command | None:
    """The command that the newest message gives, if it gives one; system messages behind it are left aside."""
    for index in range(len(messages) - 1, -1, -1):
        item = messages[index]
        if item.role not in SYSTEM:
            return _command(item, index)
    return None


def refusal(messages: tuple[Message, ...], command: Command, *, unchanged: bool = False) -> Reason | None:
    """Why `command` cannot be carried out, as far as the history tells; None where it can be tried.

    `unchanged`: the store knows that nothing was written since the last compaction. Whoever then finds nothing to gain
    answers NOTHING_YET as well.
    """
    if command.attachments:
        return Reason.ATTACHMENTS
    before = messages[: command.at]
    skip = pairs(before)
    real = [item for index, item in enumerate(before) if index not in skip and item.role not in SYSTEM]
    if not any(item.role == "assistant" for item in real):
        return Reason.NOTHING_YET
    if _running(real[-1]):
        return Reason.RUNNING
    return Reason.NOTHING_NEW if unchanged or _just_compacted(before, skip) else None


def compacted(made: Compaction, display: str = "") -> Result:
    """The result of a command that made notes; `display` is their narrative for people."""
    notes = made.notes
    what = covered(notes) if notes.turns or notes.part else "long messages"
    return Result(
        status="compacted",
        line=f"{_DONE}{what}, {made.before:,} -> {made.after:,} tokens.",
        turns=notes.turns,
        part=notes.part,
        tokens_before=made.before,
        tokens_after=made.after,
        compaction_id=made.id,
        trigger="MANUAL",
        writer=made.writer,
        summary_display=display,
    )


def refused(reason: Reason, why: str = "") -> Result:
    """The result of a command that changed nothing. `why`: a few words of ours on a summary that failed."""
    why = " ".join(why.split())[:160].rstrip(".") or "no notes could be made"
    said = {
        Reason.NOTHING_YET: "there is nothing to compact yet",
        Reason.NOTHING_NEW: "already compacted, and nothing new was written since",
        Reason.RUNNING: "the latest turn is running or paused",
        Reason.ATTACHMENTS: "the message has attachments",
        Reason.FAILED: f"the summary failed: {why.replace('_', ' ')}",
    }
    return Result(
        status="not_compacted",
        line=f"{_NOT}{said[reason]}.",
        reason=reason,
        why=why if reason is Reason.FAILED else "",
    )


def pairs(messages: tuple[Message, ...]) -> frozenset[int]:
    """The indices of earlier commands and of our lines that answered them."""
    found: set[int] = set()
    for index, item in enumerate(messages):
        if answers(item):
            asked = index - 1
            while asked >= 0 and messages[asked].role in SYSTEM:
                asked -= 1
            if asked >= 0 and _command(messages[asked], asked) is not None:
                found |= {asked, index}
    return frozenset(found)


def _command(item: Message, index: int) -> Command | None:
    if item.role != "user":
        return None
    texts = [block.text for block in item.blocks if type(block) is Text]
    text = texts[0] if len(texts) == 1 else "\n".join(texts)
    if "/compact" not in text or len(text) > LONGEST:
        return None
    said = spoken(text)
    match = _COMMAND.fullmatch(said.text)
    if match is None:
        return None
    return Command(at=index, wish=(match["wish"] or "").strip(), attachments=item.media or said.files)


def answers(item: Message) -> bool:
    """Whether a message is one of our lines."""
    return item.role == "assistant" and _answered(item) is not None


def _answered(item: Message) -> re.Match[str] | None:
    """Whether a message is one of our lines and nothing else."""
    if item.calls:
        return None
    for block in item.blocks:
        if type(block) is Text and block.text.lstrip().startswith(("Conv", "Not ")):
            return _ANSWER.fullmatch(item.text.strip())
    return None


def _running(last: Message) -> bool:
    """Whether the turn that `last` ends is not over: an open tool loop, or a pause."""
    paused = any(type(block) is Clarification or type(block) is Approval for block in last.blocks)
    return bool(last.results or last.calls) or paused


def _just_compacted(before: tuple[Message, ...], skip: frozenset[int]) -> bool:
    """Whether a command that made notes stands behind everything else, with nothing but refused ones behind it."""
    last = max(index for index, item in enumerate(before) if index not in skip and item.role not in SYSTEM)
    answers = (_answered(before[index]) for index in skip if index > last and before[index].role == "assistant")
    return any(answer is not None and answer["done"] for answer in answers)
