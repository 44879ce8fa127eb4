"""Memory: how much of the turns that are closed a model is told. The open turn is told word for word, always.

A closed turn keeps what the user said and what the model answered, the newest of its calls, and the results of these
while it is among the latest; reasoning and what was said before a call are not told again (`turned`). The boundaries
are functions of the turns since the compaction in use (`pacing`): between two moves the same bytes are told, and
nothing has to be remembered for that. Identities, notes and pins are made of what was shown, never of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.core.agent import MemoryLimits
from proxy.core.conversation import SYSTEM, Message
from proxy.core.groups import opened, turns
from proxy.core.hidden import Expansion
from proxy.core.pacing import Pace, Weight, Window, loosest, paced, stepped
from proxy.core.past import Chain
from proxy.core.recollection import Recollection, Turned
from proxy.core.replayed import Age, Refer
from proxy.core.turned import told, turned

_GONE: Final = Expansion(gone=True)

Whole = tuple[str, int, int]
"""What a result was cut from: its reference, the index of the message where it is told, its place among those."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one prompt. `expansions` are what is told at the place of each message; `wholes` the texts that
    must be to be had, by the references that it names; `since` is the message with which the first turn that stays
    begins, where turns before it have slid out (None: none has); `net` how many estimated tokens more it tells than the
    history (fewer: less than none)."""

    expansions: Mapping[int, Expansion]
    window: Window
    net: int = 0
    wholes: tuple[Whole, ...] = ()
    since: int | None = None


class _Prior(msgspec.Struct, frozen=True, kw_only=True):
    """A memory, and what was known besides of the messages that it is of."""

    known: Mapping[int, Expansion]
    made: Remembered


class Teller(msgspec.Struct, frozen=True, kw_only=True):
    """How the closed turns of one history are told. `known` is what is told at the places of its messages besides;
    `refer` is None where nobody could ask for a whole result; `recollection` keeps turns from call to call; `written`
    puts a message that is told again and again into the bytes that it is sent in; `variant` names the notes by which
    some of `messages` are cut. `settled`: the newest turn is closed too."""

    messages: tuple[Message, ...]
    chain: Chain
    known: Mapping[int, Expansion]
    limits: MemoryLimits
    pace: Pace = Pace()
    refer: Refer | None = None
    recollection: Recollection | None = None
    written: Callable[[Message], Message] | None = None
    variant: str = ""
    settled: bool = False

    def remembered(self, kept: Sequence[int], name: str = "") -> Remembered:
        """The memory of a prompt that tells the messages at the indices `kept`; `name` is that of the notes in it.

        Turns that slid out are told like the oldest ones until a compaction stands for them, or not at all, as the
        limits say.
        """
        first = len(self.messages) if self.settled else opened(self.messages)
        if self.recollection is None or not first:
            return self._remembered(kept)
        known = {index: each for index, each in self.known.items() if index < first}
        key = (self._mark(first), name, self.limits, self.pace, self.refer is not None)
        prior: _Prior | None = self.recollection.get(key)
        if prior is None or prior.known != known:
            prior = _Prior(known=known, made=self._remembered(kept))
            self.recollection.put(key, prior, 40 * first)
        made = prior.made
        if len(known) == len(self.known):
            return made
        return msgspec.structs.replace(made, expansions={**self.known, **made.expansions})

    def _mark(self, first: int) -> tuple[object, ...]:
        """What tells the messages before `first` from all others: their place in the chain, and what is no part of it,
        ids of calls and where system messages stand."""
        ids: list[str] = []
        systems: list[int] = []
        for index in range(first):
            item = self.messages[index]
            if item.calls:
                ids += [call.id for call in item.calls]
            elif item.role in SYSTEM:
                systems.append(index)
        return self.chain.after[first - 1], first, tuple(ids), tuple(systems)

    def _remembered(self, kept: Sequence[int]) -> Remembered:
        closed = closed_turns(self.messages, kept, settled=self.settled)
        if self.pace.step is not None:
            bounds = stepped(len(closed), self.limits, self.pace.step)
        else:
            bounds = paced([self._weight(indices) for indices in closed], self.limits, self.pace)
        return self._within(closed, bounds)

    def loosest(self) -> Remembered:
        """The memory that tells the most that the pace allows, wherever notes end: whoever plans some counts on it."""
        closed = closed_turns(self.messages, range(len(self.messages)), settled=self.settled)
        return self._within(closed, loosest(len(closed), self.limits, self.pace))

    def _within(self, closed: Sequence[tuple[int, ...]], bounds: Window) -> Remembered:
        expansions = dict(self.known)
        wholes: list[Whole] = []
        net = 0
        for number, indices in enumerate(closed[: bounds.trimmed]):
            if number < bounds.first and self.limits.leaving == "drop":
                said = tuple(index for index in indices if self.messages[index].role not in SYSTEM)
                net -= self._whole(said)
                expansions.update(dict.fromkeys(said, _GONE))
                continue
            net -= self._whole(indices)
            found = self._turned(indices, "recent" if number >= bounds.results else "older")
            net += found.tokens
            wholes += found.wholes
            _place(expansions, found, self.known)
        since = closed[bounds.first][0] if bounds.first else None
        return Remembered(expansions=expansions, window=bounds, net=net, wholes=tuple(wholes), since=since)

    def _whole(self, indices: tuple[int, ...]) -> int:
        said = (told(self.messages[index], self.known.get(index)) for index in indices)
        return sum([item.tokens for items in said for item in items])

    def _turned(self, indices: tuple[int, ...], age: Age) -> Turned:
        if self.recollection is None:
            return turned(self.messages, indices, self.known, age, self.limits, self.refer)
        key = (*self._key(indices), age, self.limits, self.refer is not None)
        found: Turned | None = self.recollection.get(key)
        if found is None:
            found = turned(self.messages, indices, self.known, age, self.limits, self.refer)
            if self.written is not None:
                found = written(found, self.written)
            self.recollection.put(key, found, found.tokens)
        return found

    def _key(self, indices: tuple[int, ...]) -> tuple[object, ...]:
        """What a turn's told form depends on: its place in the chain, where notes cut it off, the ids of its calls, and
        what we said in it."""
        messages, known = self.messages, self.known
        ids = tuple([call.id for index in indices for call in messages[index].calls])
        ours = tuple(
            [
                (index, item.digest, tuple([call.id for call in item.calls]), known[index].beside)
                for index in indices
                if index in known
                for item in told(messages[index], known[index])
            ]
        )
        return self.chain.after[indices[-1]], indices, ids, ours, self.variant

    def _weight(self, indices: tuple[int, ...]) -> Weight:
        calls = asked = 0
        for index in indices:
            for item in told(self.messages[index], self.known.get(index)):
                calls += item.role == "assistant"
                asked += item.tokens if item.by_user else 0
        recent, older = self._turned(indices, "recent"), self._turned(indices, "older")
        whole = self._whole(indices)
        return Weight(whole=whole, recent=recent.tokens, older=older.tokens, asked=asked, calls=calls)


def written(found: Turned, write: Callable[[Message], Message]) -> Turned:
    """`found` with every message in its bytes."""
    places = {
        index: tuple([item if item.wire is not None else write(item) for item in said])
        for index, said in found.places.items()
    }
    return msgspec.structs.replace(found, places=places)


def closed_turns(messages: tuple[Message, ...], kept: Sequence[int], *, settled: bool = False) -> list[tuple[int, ...]]:
    """The messages of each closed turn as far as they are told, from its first on that is no system message. What
    stands before the first turn counts as its beginning. `settled`: the newest turn is closed too."""
    ends = [turn.last for turn in turns(messages)]
    if not settled:
        del ends[-1:]
    found: list[list[int]] = [[] for _ in ends]
    place = 0
    for index in kept:
        while place < len(ends) and index > ends[place]:
            place += 1
        if place == len(ends):
            break
        if found[place] or messages[index].role not in SYSTEM:
            found[place].append(index)
    return [tuple(indices) for indices in found if indices]


def _place(expansions: dict[int, Expansion], found: Turned, known: Mapping[int, Expansion]) -> None:
    """Put a turn's told form in; what stood beside a message that was joined with another stands beside that one."""
    last = -1
    for index, said in found.places.items():
        beside = known[index].beside if index in known else ""
        if said:
            expansions[index] = Expansion(before=said[:-1], instead=said[-1], beside=beside)
            last = index
            continue
        expansions[index] = _GONE
        if beside and last >= 0:
            both = "\n\n".join(text for text in (expansions[last].beside, beside) if text)
            expansions[last] = msgspec.structs.replace(expansions[last], beside=both)
