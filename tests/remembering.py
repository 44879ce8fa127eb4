"""What is checked of a prompt that tells closed turns as memory: written for the tests alone, from what was sent.

It reads two transcripts, what the client has and what the provider got, and what can be asked for by reference. So it
judges the core's prompts (`benchmarks.memory_cost.played`) and those of a running gateway alike, whoever keeps the
history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from benchmarks.memory_cost import Played
from proxy.core import groups
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import SYSTEM, Message, Reasoning, Text
from proxy.dialects.chat.messages import write_message
from tests.strict import violation

KINDS = (
    "shape",
    "ids",
    "open",
    "turns",
    "calls",
    "merged",
    "reasoning",
    "narration",
    "neighbours",
    "arguments",
    "result",
    "reference",
)
"""The first word of each fault."""
_COUNTED = re.compile(r"\((?:1 earlier call of this turn is|\d+ earlier calls are) not shown\.\)")
_OLD = re.compile(r"\((?:Succeeded|Failed); |No result: |\(No longer shown; ")
_MARK = re.compile(r"\d+ characters were left out here by the gateway; read_tool_result has all of it: (res_\w+)")
_CLIPPED = re.compile(r"\n\[\.\.\. \d+ characters were left out here by the gateway \.\.\.\]\n")
_NOTES = "<conversation-notes "


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One call: the client's history, repaired, the messages that were sent of it, whether they were made by a
    compaction, and what is stored by then."""

    shown: tuple[Message, ...]
    told: tuple[Message, ...]
    compacted: bool
    stored: Callable[[str], bool]


def faults(each: Played, limits: MemoryLimits, *, beyond: int = 0) -> list[str]:
    """What is wrong with one prompt of the core; see `told_faults`."""
    told = Told(
        shown=each.shown,
        told=each.prompt.messages,
        compacted=each.prompt.report.compaction_id is not None,
        stored=each.results.__contains__,
    )
    return told_faults(told, limits, beyond=beyond)


def told_faults(each: Told, limits: MemoryLimits, *, beyond: int = 0) -> list[str]:
    """What is wrong with one prompt; each fault begins with a word for its kind. `beyond` are the turns that the
    boundaries may lag behind, in which everything stands word for word."""
    told = each.told
    found = [*shape_faults(told)]
    lead = next(index for index, item in enumerate(told) if item.role not in SYSTEM)
    noted = told[lead].role == "user" and told[lead].text.startswith(_NOTES)
    behind = told[lead + noted :]
    turns = groups.turns(behind)
    opened = groups.turns(each.shown)[-1:]
    if opened and not _open_as_shown(behind[turns[-1].first :], each.shown[opened[0].first :], each.compacted):
        found.append("open: the open turn is not told word for word")
    closed = [behind[turn.first : turn.last + 1] for turn in turns[:-1]]
    if closed:
        closed[0] = behind[: turns[0].last + 1]
    if len(closed) > limits.turns + beyond:
        found.append(f"turns: {len(closed)}")
    batches = [tuple(call.id for call in item.calls) for item in each.shown if item.calls]
    for age, turn in enumerate(reversed(closed)):
        if age >= beyond:
            found += _turn_faults(turn, limits, recent=age < limits.result_turns + beyond)
            found += _merged(turn, batches)
    for reference in _MARK.findall("\n".join(item.text for turn in closed for item in turn if item.results)):
        if not each.stored(reference):
            found.append(f"reference: {reference} was told before it was stored")
    return found


def parted_faults(told: Sequence[Message]) -> Iterator[str]:
    """Where prompts must alternate: neighbours of one role that could have been one message."""
    for before, item in pairwise(told):
        if before.role == item.role and item.role in ("user", "assistant") and not before.calls:
            yield f"neighbours: two of {item.role}"


def shape_faults(told: Sequence[Message]) -> Iterator[str]:
    """What a strict provider of chat completions refuses, every call answered exactly once right behind it."""
    fault = violation({"messages": [json.loads(write_message(item)) for item in told]})
    if fault is not None:
        yield f"shape: {fault}"
    for item in told:
        if len({call.id for call in item.calls}) < len(item.calls):
            yield "ids: one id for two calls"


def _open_as_shown(told: tuple[Message, ...], shown: tuple[Message, ...], compacted: bool) -> bool:
    """Word for word; where a compaction reaches into the open turn, all of its requests and its end, perhaps cut."""
    if compacted and len(told) > len(shown):
        # Notes left nothing of the turn before but its request and system messages: no answer parts it from this one.
        told = told[len(told) - len(shown) :]
    if told == shown or [*map(write_message, told)] == [*map(write_message, shown)]:
        return True
    told, shown = (tuple(item for item in each if item.role not in SYSTEM) for each in (told, shown))
    asks = next((place for place, item in enumerate(shown) if item.role != "user"), len(shown))
    asked, rest = told[:asks], told[asks:]
    if not compacted or len(asked) < asks or len(rest) > len(shown) - asks:
        return False
    end = shown[len(shown) - len(rest) :]
    return all(map(_same, asked, shown)) and all(map(_same, rest, end)) and not (rest and rest[0].results)


def _same(told: Message, shown: Message) -> bool:
    """Whether `told` is `shown`, or head and tail of its texts."""
    if told == shown or write_message(told) == write_message(shown):
        return True
    if told.role != shown.role or told.calls != shown.calls:
        return False
    head, *rest = _CLIPPED.split(told.text, maxsplit=1)
    return shown.text.startswith(head) and shown.text.endswith(_CLIPPED.split(rest[0])[-1] if rest else head)


def _merged(turn: tuple[Message, ...], batches: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Calls of two messages under one, results in one message, or prose that took a call in."""
    for item in turn:
        if item.calls and not any(_within(tuple(call.id for call in item.calls), batch) for batch in batches):
            yield "merged: calls that were made apart"
        if item.results and (len(item.results) > 1 or any(type(block) is Text for block in item.blocks)):
            yield "merged: a result with something else"


def _within(ids: tuple[str, ...], batch: tuple[str, ...]) -> bool:
    left = iter(batch)
    return all(id in left for id in ids)


def _turn_faults(turn: tuple[Message, ...], limits: MemoryLimits, *, recent: bool) -> Iterator[str]:
    calls = sum(len(item.calls) for item in turn)
    if calls > limits.calls:
        yield f"calls: {calls} in a turn"
    for place, item in enumerate(turn):
        before = turn[place - 1] if place else None
        if any(type(block) is Reasoning for block in item.blocks):
            yield "reasoning: told again"
        if item.calls and item.text and not _COUNTED.fullmatch(item.text):
            yield "narration: beside a call"
        if item.role == "assistant" and not item.calls and any(later.calls for later in turn[place:]):
            yield "narration: before a call"
        if (
            before is not None
            and not item.calls
            and not before.calls
            and item.role == before.role in ("user", "assistant")
        ):
            yield f"neighbours: two of {item.role}"
        for call in item.calls:
            try:
                texts = list(_strings(json.loads(call.arguments or "{}")))
            except ValueError:
                yield "arguments: no JSON"
                continue
            if any(len(text) > limits.argument_chars for text in texts):
                yield "arguments: a long string"
        for result in item.results:
            if len(result.text) > limits.result_chars:
                yield f"result: {len(result.text)} characters"
            if not recent and not _OLD.match(result.text):
                yield "result: told in an older turn"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
