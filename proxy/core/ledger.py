"""What must survive of a conversation though nobody quotes it: paths, URLs, ids, numbers, commands, errors.

Extraction is mechanical (no model, no call). Ranking is by use: what the model itself wrote counts more than what
merely passed by in an output, lately more than long ago, the cheap before the dear. Summaries by a model keep decisions
and lose exactly these (research/compaction.md 0.4), so code keeps them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, cast

from proxy.core.conversation import Block, Message, Text, ToolCall, ToolResult
from proxy.core.identifiers import LONGEST, ends, identifiers, subpaths
from proxy.core.measure import estimate
from proxy.core.notes import Entry, Kind, Scan, Sighting, Sightings
from proxy.core.render import ledger_text

_COMMAND_KEYS: Final = ("command", "cmd", "script")
_ERROR: Final = re.compile(
    r"^.{0,80}?\b(?:[A-Z]\w*(?:Error|Exception)|[Ee]rror|ERROR|FAILED|fatal|panic|Traceback)\b.{0,160}$", re.MULTILINE
)

# Fitted on the recorded conversations by random search, a third of them held out: of what the next messages used and
# the tail did not say, the ledger held 63 % at 8k on those held out, against 54 % with one half-life and no prices.
_WEIGHT: Final = (1.7, 5.0, 4.0, 1.0)
"""What one sighting counts, by who said it."""
_OFTEN: Final = (0.4, 0.4, 0.4, 0.0)
"""Exponent of the number of sightings: the tenth counts less than the first, and in outputs nothing at all, where what
comes often is mostly noise."""
_FRESH: Final = 5.0
_FRESH_HALF: Final = 4.0
_STALE_HALF: Final = 130.0
_EVER: Final = 0.3
"""Messages after which the fresh and the lasting part of a sighting's worth are halved, and what is never lost."""
_DEARNESS: Final = 0.5
"""Exponent of an entry's price: well below 1, so that long paths are not driven out by short numbers."""
_CROWD: Final = 0.15
"""Exponent of how many others stood beside it, where they were fewest: one of three is more likely meant than one of
three hundred."""
_RETURN: Final = 0.2
"""Exponent of all its sightings: what came back comes back."""
_WORTH: Final[Mapping[str, float]] = MappingProxyType(
    {"url": 0.7, "id": 0.8, "number": 0.8, "name": 0.1, "line": 0.2, "command": 0.15, "error": 0.1}
)
_SHORT_NUMBER: Final = 0.5
_SEPARATOR: Final = 1
"""Estimated tokens between entries, with an entry's share in the head of its line."""
_PASSES: Final = 8
_FULL: Final = 0.98
"""How often a listing is written anew to use its budget, and when it is used well enough."""
_OWN_PART: Final = 40
"""Commands, and errors, may take this part of the budget before all others compete."""

USER, MODEL, CALL, RESULT = range(4)
"""Who said it: the user, the model in prose, the model in a call, a tool."""


def sightings(message: Message, redact: Callable[[str], str] = str) -> Sightings:
    """What `message` says that must survive. A function of its bytes alone, so whoever keeps messages may keep it.

    Every text passes `redact` whole before it is taken apart: a part of a secret looks like any identifier.
    """
    found: list[Sighting] = []
    for place, block in enumerate(message.blocks):
        if type(block) is Text:
            _see(found, redact(block.text), USER if message.role == "user" else MODEL, place)
        elif type(block) is ToolCall:
            for key, value in leaves(redact(block.arguments)):
                if key in _COMMAND_KEYS and value.strip():
                    found.append(("command", value.strip().splitlines()[0][:LONGEST], CALL, place))
                _see(found, value, CALL, place)
        elif type(block) is ToolResult:
            text = redact(block.text)
            _see(found, text, USER if message.answer else RESULT, place)
            if message.answer:
                continue
            errors = islice(_ERROR.finditer(ends(text)), 3)
            found.extend(("error", error.group().strip(), RESULT, place) for error in errors)
    return tuple(found)


def _see(into: list[Sighting], text: str, by: int, place: int) -> None:
    once: dict[str, str] = {}
    for kind, found in identifiers(text):
        once.setdefault(found, kind)
    into.extend((kind, found, by, place) for found, kind in once.items())


def named(texts: Iterable[str]) -> frozenset[str]:
    """All identifiers in `texts`, and the shorter paths that stand inside longer ones."""
    found = {name for text in texts for _, name in identifiers(text)}
    return frozenset(found.union(*map(subpaths, found)))


def leaves(arguments: str) -> Iterator[tuple[str, str]]:
    """Pairs (key, text) of every string and number inside JSON arguments; the text itself where it is not JSON."""
    try:
        value: object = json.loads(arguments) if arguments.strip() else None
    except (ValueError, RecursionError):
        yield "", arguments
        return
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        key, item = stack.pop()
        if isinstance(item, str):
            yield key, item
        elif isinstance(item, dict):
            stack.extend((str(name), inner) for name, inner in reversed(list(item.items())))
        elif isinstance(item, list):
            stack.extend((key, inner) for inner in reversed(item))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield key, repr(item)


class _Seen:
    """One identifier: how often each of the four said it and when last, and where it stood last."""

    __slots__ = ("crowd", "kind", "last", "order", "source", "times", "turn")

    def __init__(self, kind: str, order: int) -> None:
        self.kind = kind
        self.order = order
        self.crowd = 1 << 30
        self.times = [0, 0, 0, 0]
        self.last = [0, 0, 0, 0]
        self.turn = 0
        self.source = ""


class Ledger:
    """Sightings of identifiers, message by message; `best` lists what is worth its tokens.

    A plain accumulator: feed it messages in order with the turn they stand in.
    """

    def __init__(self, scan: Scan = sightings) -> None:
        self._scan = scan
        self._seen: dict[str, _Seen] = {}
        self._clock = 0
        self._calls: dict[str, int] = {}
        self._sources: dict[str, str] = {}

    @property
    def calls(self) -> tuple[tuple[str, int], ...]:
        """Tools that were called, with how often, most used first."""
        return tuple(sorted(self._calls.items(), key=lambda item: (-item[1], item[0])))

    def add(self, message: Message, turn: int) -> None:
        self._clock += 1
        sources = [self._source(block) for block in message.blocks]
        found = self._scan(message)
        for kind, text, by, place in found:
            seen = self._seen.get(text)
            if seen is None:
                seen = self._seen[text] = _Seen(kind, len(self._seen))
            elif seen.kind == "line":
                seen.kind = kind
            seen.crowd = min(seen.crowd, len(found))
            seen.times[by] += 1
            seen.last[by] = self._clock
            seen.turn = turn
            seen.source = sources[place] or seen.source

    def _source(self, block: Block) -> str:
        """The tool that a block calls or answers; "" for prose."""
        if type(block) is ToolCall:
            self._calls[block.name] = self._calls.get(block.name, 0) + 1
            self._sources[block.id] = block.name
            return block.name
        return self._sources.get(block.call_id, "") if type(block) is ToolResult else ""

    def best(self, budget: int, present: frozenset[str]) -> tuple[tuple[Entry, ...], int]:
        """The entries that take at most `budget` estimated tokens as they will be written, in the order they were last
        seen, and how many were left out.

        What is `present` word for word elsewhere in the prompt, or in a longer path that is listed, is not listed
        again. Commands and errors are dear and have a small part of the budget of their own.
        """
        prices = {text: estimate(text) + _SEPARATOR for text in self._seen if text not in present}
        ranked = sorted(prices, key=lambda text: (-self._score(text, prices[text]), text))
        best: tuple[tuple[Entry, ...], int] = ((), len(prices))
        low, high, asked = 0.0, 2.0 * budget, float(min(budget, sum(prices.values())))
        for _ in range(_PASSES):
            entries, unlisted = self._listed(ranked, prices, int(asked))
            written = max(1, estimate(ledger_text(entries, unlisted)))
            if written <= budget:
                low, best = asked, (entries, unlisted)
                if not unlisted or written > _FULL * budget:
                    break
            else:
                high = asked
            guess = asked * budget / written * _FULL
            asked = guess if low < guess < high else (low + high) / 2
        return best

    def _listed(self, ranked: list[str], prices: dict[str, int], budget: int) -> tuple[tuple[Entry, ...], int]:
        kept: dict[str, None] = {}
        spent = 0
        for kind in ("command", "error"):
            spent += self._fill(kept, self._newest(prices, kind), prices, budget // _OWN_PART)
        self._fill(kept, ranked, prices, budget - spent)
        inside = frozenset(short for text in kept for short in subpaths(text))
        listed = sorted((text for text in kept if text not in inside), key=self._place)
        unlisted = sum(1 for text in prices if text not in kept and text not in inside)
        return tuple(self._entry(text) for text in listed), unlisted

    def _newest(self, prices: dict[str, int], kind: str) -> list[str]:
        found = [text for text in prices if self._seen[text].kind == kind]
        return sorted(found, key=lambda text: (-max(self._seen[text].last), self._seen[text].order))

    def _fill(self, kept: dict[str, None], ranked: list[str], prices: dict[str, int], budget: int) -> int:
        """Take from `ranked` what fits `budget`; returns what that costs. A path that a longer one holds is free, and
        the price of a shorter one is given back when the longer one comes after it."""
        inside: set[str] = set()
        left = budget
        for text in ranked:
            if text in kept or text in inside:
                continue
            parts = frozenset(subpaths(text))
            price = prices[text] - sum(prices[short] for short in parts if short in kept and short not in inside)
            if price <= left:
                left -= price
                kept[text] = None
                inside |= parts
            elif left < _SEPARATOR + 1:
                break
        return budget - left

    def _place(self, text: str) -> tuple[int, str, int]:
        seen = self._seen[text]
        return seen.turn, seen.source, seen.order

    def _entry(self, text: str) -> Entry:
        seen = self._seen[text]
        return Entry(kind=cast("Kind", seen.kind), text=text, turn=seen.turn, source=seen.source)

    def _score(self, text: str, price: int) -> float:
        """How likely `text` is used next, for its price."""
        seen = self._seen[text]
        total = 0.0
        for by, times in enumerate(seen.times):
            if times:
                age = self._clock - seen.last[by]
                fresh = _FRESH * 0.5 ** (age / _FRESH_HALF) + 0.5 ** (age / _STALE_HALF) + _EVER
                total += _WEIGHT[by] * math.pow(times, _OFTEN[by]) * fresh
        worth = _WORTH.get(seen.kind, 1.0)
        if seen.kind in ("number", "line") and len(text) < 3:
            worth *= _SHORT_NUMBER
        worth *= math.pow(sum(seen.times), _RETURN) * math.pow(seen.crowd, -_CROWD)
        return total * worth / math.pow(price, _DEARNESS)
