"""Conversations that were seen before: the bytes that a body begins with to the history they are.

An agent sends its whole history again with every call. Where its bytes are those of a known one, they are compared and
not read again; what is behind them is. Per key, so that nobody's history speeds up another's call; bounded in bytes,
least recently used first out. Nothing is believed that was not compared: where a conversation is looked for is decided
by the few bytes in front of certain places, whether it is the same by all of them.

Tool definitions are kept here too: they come with every call, and are large.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import msgspec
import xxhash

from proxy.core.past import Past
from proxy.core.recognition import beginning
from proxy.core.steps import Caller
from proxy.dialects.chat.request import Beginning, Tools

LEAST: Final = 4096
"""Bytes of messages below which reading them again costs no more than finding them."""
_PLACES: Final = tuple(sorted(size << step for size in (LEAST, LEAST * 3 // 2) for step in range(15)))
_WINDOW: Final = 64
_ALIKE: Final = 4
"""Conversations kept that are alike up to the place they are looked for at."""
_MESSAGE: Final = 600
"""Bytes that a message costs beside its own, about."""
_JOINED: Final = 1 << 16
"""Bytes of a piece of text that has grown enough."""
_TOOLS: Final = 16 << 20
_NAME: Final = b'"messages"'
_OPENING: Final = re.compile(rb'"messages"\s*+:\s*+\[\s*+')
_COMMA: Final = re.compile(rb"\s*+,\s*+")

_Place = tuple[str, str, int, bytes]


class _Text(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Bytes in pieces, `size` of them: a history that grows keeps those that it has, so that none are moved, and the
    body of its newest call is not held."""

    pieces: tuple[bytes, ...]
    size: int

    def stands(self, body: bytes, start: int, low: int, high: int) -> bool:
        """Whether those from `low` to `high` stand in `body`, which has the first at `start`."""
        at = 0
        for piece in self.pieces:
            end = at + len(piece)
            if low < end and at < high:
                first = max(low, at)
                part = piece if low <= at and end <= high else memoryview(piece)[first - at : high - at]
                if not body.startswith(part, start + first):
                    return False
            at = end
        return True

    def grown(self, upto: int, rest: bytes) -> _Text:
        """The first `upto`, and `rest` behind them."""
        kept: list[bytes] = []
        left = upto
        for piece in self.pieces:
            if left > 0:
                kept.append(piece[:left])  # itself where it is no longer
                left -= len(piece)
        if len(kept) > 1 and len(kept[-1]) < _JOINED:
            rest = kept.pop() + rest
        return _Text((*kept, rest), sum(map(len, kept)) + len(rest))


class _Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`text` are the messages of `past`, with `comma` between them."""

    past: Past
    comma: bytes
    place: _Place
    text: _Text

    def shared(self, body: bytes, start: int, count: int, at: int) -> tuple[int, int]:
        """How many of the messages stand in `body` from `start` on, a comma behind each, and where they end. `count`
        of them are known to, and end at `at`."""
        messages, comma, text = self.past.messages, self.comma, self.text
        if count == len(messages):
            return count, at
        known = at - start
        last = text.size - len(messages[-1].wire or b"")  # some clients write their newest message anew with each call
        if text.stands(body, start, known, last):
            if text.stands(body, start, last, text.size) and body.startswith(comma, start + text.size):
                return len(messages), start + text.size + len(comma)
            return len(messages) - 1, start + last
        sizes = [len(item.wire or b"") + len(comma) for item in messages[count:-1]]
        ends = list(accumulate(sizes, initial=known))
        low, high = 0, len(sizes)
        while low < high:  # of what is left the half that stands in front
            middle = (low + high + 1) // 2
            if text.stands(body, start, ends[low], ends[middle]):
                low = middle
            else:
                high = middle - 1
        return count + low, start + ends[low]


class Beginnings:
    """`budget` bounds what is held, in bytes. Not shared between threads."""

    def __init__(self, budget: int = 96 << 20) -> None:
        self._budget = budget
        self._seed = secrets.randbits(63)
        self._entries: dict[_Place, list[_Entry]] = {}
        self._tools: dict[tuple[str, int], Tools] = {}
        self._tools_held = 0
        self.mark = b'"' + secrets.token_hex(16).encode() + b'"'
        """What stands for messages that are not read; no client can know it."""
        self.held = 0

    def of(self, caller: Caller) -> Own:
        """What one call may use: the beginnings that its key has sent."""
        return Own(self, caller)

    # -- conversations --

    def longest(self, owner: tuple[str, str], body: bytes, start: int) -> tuple[_Entry, int, int] | None:
        """(entry, how many of its messages the body has from `start` on, where they end)."""
        for index in range(bisect_right(_PLACES, len(body) - start) - 1, -1, -1):
            size = _PLACES[index]
            place = (*owner, size, body[start + size - _WINDOW : start + size])
            alike = self._entries.pop(place, None)
            if alike is None:
                continue
            self._entries[place] = alike
            best: tuple[_Entry, int, int] | None = None
            for entry in alike:
                count, end = (best[1], best[2]) if best is not None and _shares(entry, best) else (0, start)
                count, end = entry.shared(body, start, count, end)
                if best is None or end > best[2]:
                    best = entry, count, end
                if count >= len(entry.past.messages) - 1:
                    break
            if best is not None and best[2] - start >= LEAST:
                return best
        return None

    def keep(self, entry: _Entry, instead: _Entry | None) -> None:
        """Take in `entry`; `instead` of one that it continues."""
        if _weight(entry) * 4 > self._budget:
            return
        if instead is not None:
            self._drop(instead)
        alike = self._entries.pop(entry.place, [])
        self._entries[entry.place] = alike
        alike.insert(0, entry)
        self.held += _weight(entry)
        if len(alike) > _ALIKE:
            self.held -= _weight(alike.pop())
        while self.held > self._budget:
            oldest = self._entries.pop(next(iter(self._entries)))
            self.held -= sum(map(_weight, oldest))

    def _drop(self, entry: _Entry) -> None:
        alike = self._entries.get(entry.place, [])
        if entry in alike:
            alike.remove(entry)
            self.held -= _weight(entry)
            if not alike:
                del self._entries[entry.place]

    # -- tools --

    def tools(self, tenant: str, wire: bytes, read: Callable[[bytes], Tools]) -> Tools:
        key = (tenant, xxhash.xxh3_64_intdigest(wire, self._seed))
        found = self._tools.pop(key, None)
        if found is not None:
            self._tools_held -= len(found.wire)
        if found is None or found.wire != wire:
            found = read(wire)
        self._tools[key] = found
        self._tools_held += len(wire)
        while self._tools_held > _TOOLS:
            self._tools_held -= len(self._tools.pop(next(iter(self._tools))).wire)
        return found


class Own:
    """The memory as one call sees it; fulfils `dialects.chat.request.Remembers`."""

    __slots__ = ("_end", "_known", "_memory", "_owner", "_used")

    def __init__(self, memory: Beginnings, caller: Caller) -> None:
        self._memory = memory
        self._owner = (caller.tenant, caller.key)
        self._used: _Entry | None = None
        self._known = self._end = 0

    def tools(self, wire: bytes, read: Callable[[bytes], Tools]) -> Tools:
        return self._memory.tools(self._owner[0], wire, read)

    def beginning(self, body: bytes) -> Beginning | None:
        if len(body) < LEAST:
            return None
        start = _start(body)
        found = None if start is None else self._memory.longest(self._owner, body, start)
        if found is None or start is None:
            return None
        entry, count, end = found
        self._used, self._known, self._end = entry, count, end
        return Beginning(past=beginning(entry.past, count), start=start, end=end, mark=self._memory.mark)

    def keep(self, body: bytes, past: Past | None) -> None:
        """After the call: its history, as it was recognised, is the beginning of the next one."""
        if past is None or past.wire < LEAST or len(past.messages) < 2:
            return
        used, messages = self._used, past.messages
        before = () if used is None else used.past.messages
        if before[: len(messages)] == messages:
            return
        start, first = _start(body), messages[0].wire
        if start is None or first is None or not body.startswith(first, start):
            return
        comma = _COMMA.match(body, start + len(first))
        if comma is None:
            return
        known = self._known if before[: self._known] == messages[: self._known] else 0
        at = self._end if known else start
        rest = comma[0].join([item.wire or b"" for item in messages[known:]])
        if not body.startswith(rest, at):
            return  # its commas differ: where its messages lie is not known
        end = at + len(rest)
        if used is None or not known:
            text = _Text((body[start:end],), end - start)
        else:
            upto = at - start - len(comma[0])
            text = used.text.grown(upto, body[start + upto : end])
        size = _PLACES[bisect_right(_PLACES, end - start) - 1]
        place = (*self._owner, size, body[start + size - _WINDOW : start + size])
        # Where the newest message was written anew, too.
        continued = before[:-1] == messages[: max(0, len(before) - 1)]
        self._memory.keep(_Entry(past, comma[0], place, text), used if continued else None)


def _start(body: bytes) -> int | None:
    """Where the first message of a body begins, if the first member of that name is the one."""
    found = _OPENING.match(body, body.find(_NAME))
    return None if found is None else found.end()


def _shares(entry: _Entry, found: tuple[_Entry, int, int]) -> bool:
    """Whether the entry begins with what of another one was found in the body; most are the same values."""
    other, count, _ = found
    return entry.comma == other.comma and entry.past.messages[:count] == other.past.messages[:count]


def _weight(entry: _Entry) -> int:
    # Messages have their bytes once more, and blocks the text a third time, decoded.
    return 2 * entry.past.wire + entry.text.size + _MESSAGE * len(entry.past.messages)
