"""The end of a history that stays word for word when the rest becomes notes.

The newest group and the open request always stay; then whole groups are taken in from the end upward: four messages at
least, more while they fit their share. What stays but is too long is clipped, results before the user's own words.
Sizes are the provider's tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import SYSTEM, Block, Group, Message, Text, ToolResult, Turn
from proxy.core.groups import ended, groups, opening, turns
from proxy.core.ledger import sightings
from proxy.core.notes import Scan
from proxy.core.past import Chain
from proxy.core.policy import Policy
from proxy.core.render import clipped

_LEAST_NOTES: Final = 150
"""Estimated tokens of notes that only count what they stand for."""
_NOTES_PART: Final = 4
"""Where the newest group must be clipped, this part of the budget is left for notes."""
_FURTHER: Final = 0.5
"""Beyond the wanted messages a tail widens within this part of its share; the rest says more as a ledger."""
_LEAST_CLIP: Final = 160
"""Characters below which a clipped text says nothing any more."""


class History:
    """A repaired history with its identities, sizes and structure. `fixed` is what no compaction can touch: leading
    system messages, tools, overhead; `scale` turns our estimate into the provider's tokens; `redact` takes
    secrets out of what notes will keep."""

    def __init__(
        self,
        messages: tuple[Message, ...],
        chain: Chain,
        sizes: tuple[int, ...],
        fixed: int,
        scale: float,
        scan: Scan = sightings,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.messages = messages
        self.chain = chain
        self.sizes = sizes
        self.scale = scale
        self.scan = scan
        self.redact = redact
        self.lead = next((index for index, item in enumerate(messages) if item.role not in SYSTEM), len(messages))
        self.fixed = fixed + sum(sizes[: self.lead])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(group for group in groups(self.messages) if group.first >= self.lead)

    @property
    def newest(self) -> int:
        """Where the newest group begins that is more than a system message, if there is one."""
        found = (group.first for group in reversed(self.groups) if self.messages[group.first].role not in SYSTEM)
        return next(found, self.groups[-1].first)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        return turns(self.messages)

    @cached_property
    def _sums(self) -> tuple[int, ...]:
        total = 0
        sums = [0]
        for size in self.sizes:
            total += size
            sums.append(total)
        return tuple(sums)

    def size(self, first: int, last: int) -> int:
        """Tokens of messages `first` to `last`, both included."""
        return self._sums[last + 1] - self._sums[first]

    def scaled(self, estimated: int) -> int:
        return round(estimated * self.scale)

    @cached_property
    def openings(self) -> tuple[tuple[int, ...], ...]:
        """For each turn, the user messages that open it."""
        return tuple(opening(self.messages, turn) for turn in self.turns)

    def parted(self, start: int) -> tuple[int, ...]:
        """The user messages before `start` that opened the turn in which it falls; none where it begins a turn, or only
        system messages are left of one."""
        place = bisect_right(self.turns, start, key=lambda turn: turn.first) - 1
        if place < 0 or not self.turns[place].first < start <= ended(self.messages, self.turns[place]):
            return ()
        return tuple(index for index in self.openings[place] if index < start)


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tail starts, its tokens (a request put in front of it included), the clips (chained message, most
    characters), and how many system messages of the covered part stay."""

    start: int
    tokens: int
    clips: tuple[tuple[int, int], ...] = ()
    standing: int = 0


def choose(history: History, policy: Policy, spare: int, fit: int, most: int) -> Tail | None:
    """The tail for notes of `spare` tokens in all. `fit` and `most` bound it without and with the output lowered.

    None where what must stay exceeds `most` even when clipped, or where nothing would be covered or clipped.
    """
    if not history.groups:
        return None
    shape = _Shape(history, fit)
    if not shape.make_fit(spare, fit, most):
        return None
    allowed = max(int(policy.tail_max_share * spare), shape.tokens(shape.start))
    shape.widen(policy.tail_messages, min(allowed, fit))
    if shape.start <= history.lead and not shape.limits:
        return None
    clips = tuple(sorted((history.chain.counted[index], limit) for index, limit in shape.limits.items()))
    standing = len(shape.standing(shape.start))
    return Tail(start=shape.start, tokens=shape.tokens(shape.start), clips=clips, standing=standing)


def cut_at(history: History, start: int, fit: int) -> Tail:
    """The tail that begins with message `start`, which opens a turn, and is cut nowhere. System messages right before
    it have no identity to cut at: they stay where they are."""
    shape = _Shape(history, fit)
    first = shape.behind(start)
    tokens = shape.tokens(start) + history.size(first, start - 1)
    return Tail(start=start, tokens=tokens, standing=len(shape.standing(first)))


class _Shape:
    """A tail while it is being chosen."""

    def __init__(self, history: History, fit: int) -> None:
        self.history = history
        self.limits: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self._bound = fit // 8
        messages = history.messages
        self._inner = tuple(i for i in range(history.lead, len(messages)) if messages[i].role in SYSTEM)
        first = history.newest
        if history.turns and messages[first].role == "user":
            first = min(first, history.turns[-1].first)
        self.start = self.behind(first)

    def behind(self, index: int) -> int:
        """`index`, or the first of the system messages right before it: they have no identity to cut at."""
        while index > self.history.lead and self.history.messages[index - 1].role in SYSTEM:
            index -= 1
        return index

    def standing(self, start: int) -> tuple[int, ...]:
        """The system messages of the covered part that stay: the newest different ones within an eighth of the room."""
        found: dict[bytes, int] = {}
        left = self._bound
        for index in reversed(self._inner):
            digest = self.history.messages[index].digest
            if index < start and digest not in found:
                left -= self.history.sizes[index]
                if left < 0:
                    break
                found[digest] = index
        return tuple(found.values())

    def tokens(self, start: int) -> int:
        """Tokens of the tail from `start`, with the request of a turn that `start` parts and system messages kept."""
        history = self.history
        parted = history.parted(start)
        total = history.size(start, len(history.messages) - 1)
        total += sum(history.sizes[index] for index in (*parted, *self.standing(start)))
        return total - sum(saved for index, saved in self._saved.items() if index >= start or index in parted)

    def make_fit(self, spare: int, fit: int, most: int) -> bool:
        """Clip the newest group's results, then the open request, until what must stay fits."""
        messages = self.history.messages
        notes = max(self.history.scaled(_LEAST_NOTES), spare // _NOTES_PART)
        if self.start == self.history.lead and self.tokens(self.start) <= fit:
            notes = 0
        over = self.tokens(self.start) + notes - fit
        if over > 0:
            self._cut(self._results(range(self.start, len(messages))), over)
        over = self.tokens(self.start) + notes - most
        if over > 0:
            words = [*self.history.parted(self.start), *range(self.start, len(messages))]
            self._cut([index for index in words if messages[index].by_user], over)
        return self.tokens(self.start) <= most

    def widen(self, messages: int, allowed: int) -> None:
        """Take groups in from the end upward: while they fit, or clipped until there are `messages` of them."""
        history = self.history
        for group in reversed(history.groups):
            if group.last >= self.start:
                continue
            first = self.behind(group.first)
            missing = messages - (len(history.messages) - self.start)
            over = self.tokens(first) - (allowed if missing > 0 else int(_FURTHER * allowed))
            if over > 0:
                # A long group leaves the others that are still missing their share.
                left = allowed - self.tokens(self.start)
                others = left * max(0, missing - (self.start - first)) // max(1, missing)
                if missing <= 0 or not (self._squeeze(group, over + others) or self._squeeze(group, over)):
                    return
            self.start = first

    def _squeeze(self, group: Group, over: int) -> bool:
        """Clip the results of `group`, or its words where it has none, if that saves `over`."""
        inside = range(group.first, group.last + 1)
        results = self._results(inside)
        words = [index for index in inside if not self.history.messages[index].calls]
        for indices in (results, words):
            if self._saving(self._lengths(indices), _LEAST_CLIP) >= over:
                self._cut(indices, over)
                return True
        return False

    def _results(self, indices: range) -> list[int]:
        """Those of `indices` that hold what a tool said; a user's answer is his own words."""
        messages = self.history.messages
        return [index for index in indices if messages[index].results and not messages[index].answer]

    def _lengths(self, indices: list[int]) -> dict[int, int]:
        lengths = {index: len(self.history.messages[index].text) for index in indices if index not in self.limits}
        return {index: length for index, length in lengths.items() if length > _LEAST_CLIP}

    def _cut(self, indices: list[int], over: int) -> None:
        """Clip the longest of `indices` evenly until `over` tokens are saved, or to the least that says anything."""
        lengths = self._lengths(indices)
        if not lengths:
            return
        low, high = _LEAST_CLIP, max(lengths.values())
        while low < high:
            middle = (low + high + 1) // 2
            if self._saving(lengths, middle) >= over:
                low = middle
            else:
                high = middle - 1
        # Heads and tails may be denser than the middle that goes: the guess is corrected by what it really saves.
        while True:
            saved = {index: self._saved_by(index, low) for index, length in lengths.items() if length > low}
            if sum(saved.values()) >= over or low == _LEAST_CLIP:
                break
            low = max(_LEAST_CLIP, low * 9 // 10)
        self.limits.update(dict.fromkeys(saved, low))
        self._saved.update(saved)

    def _saving(self, lengths: dict[int, int], limit: int) -> int:
        sizes = self.history.sizes
        return int(sum(sizes[index] * (1 - limit / length) for index, length in lengths.items() if length > limit))

    def _saved_by(self, index: int, limit: int) -> int:
        item = self.history.messages[index]
        return int(self.history.sizes[index] * (1 - clip(item, limit).tokens / item.tokens))


def clip(item: Message, characters: int | None) -> Message:
    """`item` with each result or text cut to `characters`; media, calls and arguments are never touched."""
    if characters is None:
        return item
    blocks: list[Block] = []
    for block in item.blocks:
        if type(block) is ToolResult:
            block = ToolResult(call_id=block.call_id, text=clipped(block.text, characters), media=block.media)
        elif type(block) is Text:
            block = Text(text=clipped(block.text, characters), media=block.media)
        blocks.append(block)
    return message(item.role, tuple(blocks), name=item.name)
