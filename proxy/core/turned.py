"""One closed turn as it is told again: which of its calls, which of its words.

    what the user said | the chosen calls, each with an answer | what the model said behind the last call

Never: where the boundaries are (`memory`), how a single call reads (`replayed`). What is not touched is the same
message, with its own bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from proxy.core.agent import MemoryLimits
from proxy.core.chain import message
from proxy.core.conversation import Block, Message, Reasoning, Text, ToolCall, ToolResult, lawful
from proxy.core.groups import NO_RESULT, joined
from proxy.core.hidden import Expansion
from proxy.core.recollection import Turned
from proxy.core.replayed import Age, Ended, Refer, Replay, ended, replayed_call, replayed_result

_THOUGHT: Final = re.compile(rb'"(?:reasoning|thinking)\w*"\s*:')
"""A member of a message in which some provider carries thoughts, whatever it is called."""


def earlier(count: int) -> str:
    """The one line that stands for `count` calls."""
    return "(1 earlier call of this turn is not shown.)" if count == 1 else f"({count} earlier calls are not shown.)"


def told(item: Message, found: Expansion | None) -> tuple[Message, ...]:
    """What is told at the place of `item`, as far as it is known."""
    return (item,) if found is None else (*found.before, found.instead or item, *found.behind)


class _Item:
    """One message of a turn: the index of the history's message at whose place it is told, and which of those that are
    told there. `now` is what is told of it (None: nothing), `behind` what follows it."""

    def __init__(self, index: int, was: Message, place: int) -> None:
        self.index = index
        self.was = was
        self.place = place
        self.now: Message | None = was
        self.behind: tuple[Message, ...] = ()


class _Answered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call, the places of its message and of its result among the items (None: it has none), and how it ended."""

    call: ToolCall
    place: int
    result: int | None
    ended: Ended


def turned(
    messages: Sequence[Message],
    indices: Sequence[int],
    known: Mapping[int, Expansion],
    age: Age,
    limits: MemoryLimits,
    refer: Refer | None,
) -> Turned:
    """The closed turn at `indices` of a repaired history; `known` is what is told at their places besides."""
    items = [
        _Item(index, item, place)
        for index in indices
        for place, item in enumerate(told(messages[index], known.get(index)))
    ]
    calls = _calls(items)
    chosen = _chosen(items, calls, limits.calls)
    last = max((call.place for call in calls), default=-1)
    for place, each in enumerate(items):
        if each.was.role == "assistant" and not each.was.calls:
            each.now = _spoken(each.was) if place > last else None
    wholes = _replay(items, calls, chosen, age, limits, refer)
    if len(chosen) < len(calls):
        _count(items, len(calls) - len(chosen), calls[0].place)
    _join(items)
    places: dict[int, list[Message]] = {index: [] for index in indices}
    for each in items:
        places[each.index] += (*((each.now,) if each.now is not None else ()), *each.behind)
    lawful((item for said in places.values() for item in said), closed=True)
    return Turned(
        places={
            index: tuple(said)
            for index, said in places.items()
            if index in known or len(said) != 1 or said[0] is not messages[index]
        },
        tokens=sum([item.tokens for said in places.values() for item in said]),
        wholes=wholes,
    )


def _calls(items: Sequence[_Item]) -> list[_Answered]:
    """Every call, in order. Ids may be used again: a result answers a call of the message right before it."""
    found: list[_Answered] = []
    for place, each in enumerate(items):
        results: dict[str, int] = {}
        behind = place + 1
        while each.was.calls and behind < len(items) and items[behind].was.results:
            results.setdefault(items[behind].was.results[0].call_id, behind)
            behind += 1
        for call in each.was.calls:
            result = results.get(call.id)
            how = "open" if result is None else ended(items[result].was.results[0].text)
            found.append(_Answered(call=call, place=place, result=result, ended=how))
    return found


def _chosen(items: Sequence[_Item], calls: Sequence[_Answered], most: int) -> frozenset[int]:
    """The newest, failures and open calls before all others; and before those all that the user answered himself."""
    spoken = [number for number, call in enumerate(calls) if call.result is not None and items[call.result].was.answer]
    others = (number for number in range(len(calls)) if number not in spoken)
    order = sorted(others, key=lambda number: (calls[number].ended == "succeeded", -number))
    return frozenset((*spoken, *order[: max(0, most - len(spoken))]))


def _spoken(item: Message) -> Message | None:
    """What was said in prose, without thoughts."""
    if not _thinks(item):
        return item
    words = message(item.role, tuple(block for block in item.blocks if type(block) is not Reasoning), name=item.name)
    return None if words.empty else words


def _thinks(item: Message) -> bool:
    if any(type(block) is Reasoning for block in item.blocks):
        return True
    return item.wire is not None and _THOUGHT.search(item.wire) is not None


def _replay(
    items: Sequence[_Item],
    calls: Sequence[_Answered],
    chosen: frozenset[int],
    age: Age,
    limits: MemoryLimits,
    refer: Refer | None,
) -> tuple[tuple[str, int, int], ...]:
    """Put the chosen calls and their results in place of all. Returns where results were cut."""
    wholes: list[tuple[str, int, int]] = []
    said: dict[int, list[Block]] = {answered.place: [] for answered in calls}
    touched: set[int] = set()
    for number, answered in enumerate(calls):
        item = items[answered.place]
        result = items[answered.result] if answered.result is not None else None
        if number not in chosen:
            touched.add(answered.place)
            if result is not None:
                result.now = None
            continue
        call, cut = replayed_call(answered.call, limits.argument_chars)
        said[answered.place].append(call)
        if result is None:
            item.behind += (message("tool", (ToolResult(call_id=call.id, text=NO_RESULT),)),)
            continue
        if result.was.answer:
            replay = Replay(item=result.was)  # what a user says is never cut
        else:
            replay = replayed_result(result.was, answered.call, age, limits, refer, cut)
        result.now = replay.item
        if replay.whole:
            wholes.append((replay.whole, result.index, result.place))
        if cut or call.arguments != answered.call.arguments or replay.item.role != result.was.role:
            touched.add(answered.place)
    for place, replayed in said.items():
        item = items[place]
        prose = any(type(block) is not ToolCall for block in item.was.blocks)
        if place in touched or prose or _thinks(item.was):
            item.now = message("assistant", tuple(replayed)) if replayed else None
    return tuple(wholes)


def _count(items: Sequence[_Item], missing: int, first: int) -> None:
    """One line for the calls that are not told: with the first of those that are, else before the answer."""
    line = Text(text=earlier(missing))
    for each in items:
        if each.now is not None and each.now.calls:
            each.now = message("assistant", (line, *each.now.calls))
            return
    items[first].now = message("assistant", (line,))


def _join(items: Sequence[_Item]) -> None:
    """Neighbours in prose of one role become one."""
    before: _Item | None = None
    for each in items:
        if each.now is None:
            continue
        if before is not None and before.now is not None and _joinable(before.now, each.now):
            before.now = joined(_named(before.now, each.now), _named(each.now, before.now))
            each.now = None
        else:
            before = each


def _joinable(first: Message, second: Message) -> bool:
    return first.role == second.role and first.role in ("user", "assistant") and not (first.calls or second.calls)


def _named(item: Message, other: Message) -> Message:
    """`item` with its speaker's name in its words, where one message would have two."""
    if item.name == other.name:
        return item
    speaker = (Text(text=f"{item.name}:"),) if item.name else ()
    return message(item.role, (*speaker, *item.blocks))
