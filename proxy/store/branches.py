"""What a conversation's tree decides, for every database: numbers of turns, requests that are asked again, rewinds.

What belongs here: pure functions of items. What never: a statement, a connection, or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from proxy.store.owned import Item

_ASIDE = ("system", "developer")


def numbered(last: Item | None, items: Sequence[Item]) -> tuple[Item, ...]:
    """`items` behind `last` as a verb is given them: with their turns counted from its.

    A user message begins a turn, unless it stands beside another one or answers what was asked. What the system says
    belongs to the turn of the message behind it.
    """
    turn, role, paused = 0, "" if last is None else last.role, last is not None and last.paused
    found: list[Item] = []
    aside: list[Item] = []
    for item in items:
        if item.role in _ASIDE:
            aside.append(item)
            continue
        if item.role == "user" and role != "user" and not paused:
            turn += 1
        elif last is None and not turn:
            turn = 1  # what stands before the first user message is a turn too
        role, paused = item.role, False
        found += (msgspec.structs.replace(one, turn=turn) for one in (*aside, item))
        aside.clear()
    return (*found, *(msgspec.structs.replace(one, turn=turn) for one in aside))


def placed(last: Item | None, items: Sequence[Item]) -> tuple[Item, ...]:
    """`items` with the turns that they are stored with, the first of all being 1."""
    before = 0 if last is None else last.turn
    return tuple(msgspec.structs.replace(item, turn=max(before + item.turn, 1)) for item in items)


def path(items: Mapping[str, tuple[str | None, Item]], head: str | None) -> tuple[Item, ...]:
    """From the beginning to `head`, of items with their parents."""
    found: list[Item] = []
    while head is not None:
        head, item = items[head]
        found.append(item)
    return tuple(reversed(found))


def fresh(path: Sequence[Item], items: Sequence[Item]) -> tuple[Item, ...]:
    """Those of `items` that are not on `path` yet: neither by their ids, nor as its last, which nobody has answered and
    the client sends once more."""
    known = {item.id for item in path}
    left = tuple(item for item in items if item.id not in known)
    waiting = path[len(path) - unanswered(path) :]
    if len(left) > len(waiting) or not left:
        return left
    same = [(one.role, one.wire) for one in waiting[-len(left) :]] == [(one.role, one.wire) for one in left]
    return () if same else left


def answer(path: Sequence[Item], items: Sequence[Item]) -> Item | None:
    """The answer that stands behind the last of `items` on `path`."""
    place = next((index for index, item in enumerate(path) if item.id == items[-1].id), len(path))
    return next((item for item in path[place:] if item.role == "assistant"), None)


def again(path: Sequence[Item], items: Sequence[Item]) -> int:
    """How far back an answer to `items` lies that broke off and may be given once more: it is the newest item, and
    answers nothing else. 0: there is none."""
    said, broke = path[-2:] if len(path) > 1 else (None, None)
    return int(said is not None and broke is not None and broke.status == "incomplete" and said.id == items[-1].id)


def parted(path: Sequence[Item]) -> tuple[list[bytes], list[bytes]]:
    """What the latest request stated of the system, and everything that is no such statement. One stands where a
    request began: in front of everything, or behind an answer."""
    stated: list[bytes] = []
    rest: list[bytes] = []
    before = "assistant"
    for item in path:
        if item.role not in _ASIDE:
            rest.append(item.wire)
        elif before == "assistant":
            stated = [item.wire]
        elif before == "stated":
            stated.append(item.wire)
        else:
            rest.append(item.wire)
            continue
        before = "stated" if item.role in _ASIDE else item.role
    return stated, rest


def unanswered(path: Sequence[Item]) -> int:
    """How many of the last of `path` stand behind the last answer."""
    for count, item in enumerate(reversed(path)):
        if item.role == "assistant":
            return count
    return len(path)


def before(path: Sequence[Item], turns: int) -> Item | None:
    """The last item before the last `turns` turns of `path`; None where these are all."""
    gone: set[int] = set()
    for item in reversed(path):
        gone.add(item.turn)
        if len(gone) > turns:
            return item
    return None
