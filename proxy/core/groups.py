"""What is never parted, and the repair of histories that already are.

A group is an assistant message with its calls, all their results and its reasoning, or one other message. Where the
user answered a question of the model's, what he wrote beside the answer belongs to that group too. Compaction
and clipping work on groups only. `repair` runs last, after every edit: whatever the history looked like, what goes
upstream pairs each call with exactly one result right behind it, and has no empty message.
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import SYSTEM, Block, Group, Message, Text, ToolCall, ToolResult, Turn
from proxy.core.errors import Malformed

NO_RESULT: Final = "No result: this call never returned."
EMPTY_RESULT: Final = "(empty result)"
ORPHAN: Final = "Result of an earlier tool call whose call is not part of this conversation any more:"


def groups(messages: tuple[Message, ...]) -> tuple[Group, ...]:
    """The groups of a repaired history, in order; together they cover every message once."""
    found: list[Group] = []
    first = 0
    while first < len(messages):
        last = first
        if messages[first].calls:
            while last + 1 < len(messages) and messages[last + 1].results:
                last += 1
            while messages[last].by_user and last + 1 < len(messages) and messages[last + 1].role == "user":
                last += 1
        found.append(Group(first=first, last=last))
        first = last + 1
    return tuple(found)


def turns(messages: tuple[Message, ...]) -> tuple[Turn, ...]:
    """The turns: each begins with a user message (neighbouring ones are one) and ends before the next. Who answers a
    question of the model's goes on with his turn.

    Messages before the first user message belong to no turn, nor do system messages in front of one.
    """
    starts: list[int] = []
    before: str | None = None
    for index, item in enumerate(messages):
        if item.role == "user" and before != "user":
            starts.append(index)
        if item.role not in SYSTEM:
            before = "user" if item.answer else item.role
    return tuple(
        Turn(first=start, last=(starts[place + 1] if place + 1 < len(starts) else len(messages)) - 1)
        for place, start in enumerate(starts)
    )


def opened(messages: tuple[Message, ...]) -> int:
    """Index of the message with which the newest turn begins; how many there are where nobody has asked anything."""
    found, last = len(messages), len(messages) - 1
    while last >= 0:
        while last >= 0 and messages[last].role != "user":
            last -= 1
        while last >= 0 and (messages[last].role == "user" or messages[last].role in SYSTEM):
            found = last if messages[last].role == "user" else found
            last -= 1
        if last < 0 or not messages[last].answer:
            break
    return found


def newest(messages: tuple[Message, ...]) -> tuple[int, ...]:
    """Indices of the user messages that opened the newest turn."""
    return opening(messages, Turn(first=opened(messages), last=len(messages) - 1))


def opening(messages: tuple[Message, ...], turn: Turn) -> tuple[int, ...]:
    """Indices of the user messages that open `turn`: neighbours, system messages between them left aside."""
    found: list[int] = []
    for index in range(turn.first, turn.last + 1):
        role = messages[index].role
        if role == "user":
            found.append(index)
        elif role not in SYSTEM:
            break
    return tuple(found)


def ended(messages: tuple[Message, ...], turn: Turn) -> int:
    """Index of the last message of `turn`; system messages behind it are in front of what comes next."""
    last = turn.last
    while messages[last].role in SYSTEM:
        last -= 1
    return last


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """A history fit to be sent, and how many repairs that took."""

    messages: tuple[Message, ...]
    count: int


def repair(messages: tuple[Message, ...], *, alternate: bool = False) -> Repaired:
    """Pair, fill, drop and (where `alternate`) merge. A sound history comes back as the same object, count 0.

    Raises Malformed where nothing with a meaning is left.
    """
    count = 0
    if not sound(messages):
        messages, count = _paired(messages)
    if alternate:
        messages, merged = _merged(messages)
        count += merged
    if not any(item.role not in SYSTEM for item in messages) and count:
        raise Malformed("The messages hold nothing to answer.", code="invalid_messages", param="messages")
    return Repaired(messages=messages, count=count)


def sound(messages: tuple[Message, ...], known: int = 0) -> bool:
    """Whether a repair would change nothing: the common case, decided in one pass.

    The first `known` messages are the beginning of a sound history; what may still be open there is their last group.
    """
    while known and messages[known - 1].results:
        known -= 1
    waiting: set[str] = set()
    for item in messages[max(0, known - 1) :]:
        if item.role == "tool" or item.role == "function":
            results = item.results
            if len(results) != 1 or results[0].call_id not in waiting or item.empty:
                return False
            waiting.discard(results[0].call_id)
            continue
        if waiting or item.empty:
            return False
        if item.role == "assistant" and item.calls:
            waiting = {call.id for call in item.calls}
            if len(waiting) != len(item.calls):
                return False
    return not waiting


def _paired(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
    fixed: list[Message] = []
    used: set[int] = set()
    count = 0
    for index, item in enumerate(messages):
        if index in used:
            continue
        if item.results:
            count += 1
            if not item.empty:
                fixed.append(_quoted(item))
        elif item.calls:
            unique, renamed = _unique_calls(item)
            answers, taken, repairs = _answers(messages, index, item, unique)
            fixed.append(_of_their_time(unique, answers))
            fixed.extend(answers)
            used.update(taken)
            count += renamed + repairs
        elif item.empty:
            count += 1
        else:
            fixed.append(item)
    return tuple(fixed), count


def _unique_calls(item: Message) -> tuple[Message, int]:
    """Give the second of two calls with one id, and a call without any, an id of its own; a result is found by
    position."""
    seen: set[str] = set()
    taken = {call.id for call in item.calls}
    blocks: list[Block] = []
    renamed = 0
    for block in item.blocks:
        if type(block) is ToolCall and (not block.id or block.id in seen):
            names = (f"{block.id or 'call'}_{number}" for number in itertools.count(len(seen)))
            block = msgspec.structs.replace(block, id=next(name for name in names if name not in taken))
            taken.add(block.id)
            renamed += 1
        if type(block) is ToolCall:
            seen.add(block.id)
        blocks.append(block)
    return (message(item.role, tuple(blocks), name=item.name), renamed) if renamed else (item, 0)


def _of_their_time(calls: Message, answers: list[Message]) -> Message:
    """`calls`, in the form that has ids where one of the `answers` has: the old function API has none, and takes no
    answers of the new one."""
    if calls.wire is None or b'"tool_calls"' in calls.wire or all(answer.role == "function" for answer in answers):
        return calls
    return message(calls.role, calls.blocks, name=calls.name)


def _answers(
    messages: tuple[Message, ...], at: int, original: Message, unique: Message
) -> tuple[list[Message], set[int], int]:
    """One result for each call of message `at`, looked for up to the next user message or the id's next use."""
    wanted = original.calls
    found: dict[int, int] = {}
    for index in range(at + 1, len(messages)):
        item = messages[index]
        if item.role == "user" or len(found) == len(wanted):
            break
        again = {call.id for call in item.calls}
        if any(call.id in again for place, call in enumerate(wanted) if place not in found):
            break
        for result in item.results:
            place = next((p for p, call in enumerate(wanted) if p not in found and call.id == result.call_id), None)
            if place is not None:
                found[place] = index
    taken = set(found.values())
    adjacent = taken == set(range(at + 1, at + 1 + len(wanted)))
    order = sorted(range(len(wanted)), key=lambda place: found.get(place, place)) if adjacent else range(len(wanted))
    answers = [_answer(messages, found.get(place), unique.calls[place]) for place in order]
    kept = sum(1 for answer, place in zip(answers, order, strict=True) if answer is messages[found.get(place, at)])
    repairs = len(wanted) - kept + (0 if adjacent or len(found) < len(wanted) else 1)
    return answers, taken, repairs


def _answer(messages: tuple[Message, ...], found: int | None, call: ToolCall) -> Message:
    if found is None:
        return message("tool", (ToolResult(call_id=call.id, text=NO_RESULT),))
    item = messages[found]
    result = item.results[0]
    text = EMPTY_RESULT if item.empty else result.text
    if text == result.text and result.call_id == call.id and len(item.results) == 1:
        return item
    return message("tool", (ToolResult(call_id=call.id, text=text, media=result.media),), name=item.name)


def _quoted(item: Message) -> Message:
    quoted = "\n".join(f"> {line}" for line in item.text.splitlines())
    media = tuple(media for result in item.results for media in result.media)
    return message("user", (Text(text=f"{ORPHAN}\n{quoted}", media=media),))


def _merged(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
    """Join neighbouring user messages and neighbouring plain assistant messages."""
    fixed: list[Message] = []
    count = 0
    for item in messages:
        before = fixed[-1] if fixed else None
        if before is not None and _joinable(before, item):
            fixed[-1] = joined(before, item)
            count += 1
        else:
            fixed.append(item)
    return tuple(fixed), count


def _joinable(before: Message, item: Message) -> bool:
    if before.role != item.role or item.role not in ("user", "assistant"):
        return False
    return not before.calls


def joined(before: Message, item: Message) -> Message:
    """One message of the two; single texts become one text, a blank line between them."""
    blocks = before.blocks + item.blocks
    if all(type(block) is Text and not block.media for block in blocks):
        text = "\n\n".join(block.text for block in blocks if type(block) is Text)
        return message(item.role, (Text(text=text),), name=item.name)
    return message(item.role, blocks, name=item.name)
