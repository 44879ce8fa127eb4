"""What is checked of a prompt that tells closed turns as memory: written for the tests alone, from what was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from benchmarks.memory_cost import Played
from proxy.core import groups
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import SYSTEM, Message, Reasoning
from proxy.dialects.chat.messages import write_message
from tests.strict import violation

_COUNTED = re.compile(r"\((?:1 earlier call of this turn is|\d+ earlier calls are) not shown\.\)")
_OLD = re.compile(r"\((?:Succeeded|Failed); |No result: |\(No longer shown; ")
_MARK = re.compile(r"\d+ characters were left out here by the gateway; read_tool_result has all of it: (res_\w+)")


def faults(each: Played, limits: MemoryLimits, *, beyond: int = 0) -> list[str]:
    """What is wrong with one prompt; each fault begins with a word for its kind. `beyond` are the turns that the
    boundaries may lag behind, in which everything stands word for word."""
    told = each.prompt.messages
    found = []
    fault = violation({"messages": [json.loads(write_message(item)) for item in told]})
    if fault is not None:
        found.append(f"shape: {fault}")
    lead = next(index for index, item in enumerate(told) if item.role not in SYSTEM)
    behind = told[lead + (each.prompt.report.compaction_id is not None) :]
    turns = groups.turns(behind)
    opened = groups.turns(each.shown)[-1:]
    if opened and behind[turns[-1].first :] != each.shown[opened[0].first :]:
        found.append("open: the open turn is not told word for word")
    closed = [behind[turn.first : turn.last + 1] for turn in turns[:-1]]
    if closed:
        closed[0] = behind[: turns[0].last + 1]
    if len(closed) > limits.turns + beyond:
        found.append(f"turns: {len(closed)}")
    for age, turn in enumerate(reversed(closed)):
        if age >= beyond:
            found += _turn_faults(turn, limits, recent=age < limits.result_turns + beyond)
    for reference in _MARK.findall("\n".join(item.text for turn in closed for item in turn if item.results)):
        if reference not in each.results:
            found.append(f"reference: {reference} was told before it was stored")
    return found


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
