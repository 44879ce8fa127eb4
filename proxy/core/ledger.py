"""What must survive of a conversation though nobody quotes it: paths, URLs, ids, numbers, commands, errors.

Extraction is mechanical (no model, no call), ranking is by use: what the model itself wrote counts more than what
merely passed by in an output, often more than once, lately more than long ago. Summaries by a model keep decisions and
lose exactly these (research/compaction.md 0.4), so code keeps them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from proxy.core.conversation import Block, Message, Text, ToolCall, ToolResult
from proxy.core.measure import estimate
from proxy.core.notes import Entry

_SCAN: Final = 48_000
"""Characters of one text that are looked at, half from each end."""
_LONGEST: Final = 240
"""A longer match is prose, data or a blob, not an identifier."""
_COMMAND_KEYS: Final = ("command", "cmd", "script")
_HALF_LIFE: Final = 24.0
"""Messages after which a sighting counts half."""

# Two linear steps: runs of characters that identifiers are made of, then an anchored look at each short run.
_RUN: Final = re.compile(r"(?:[\w./@#$€£~+\\:=&?%-]|(?<=\d),(?=\d{3}))+")
_MARKS: Final = re.compile(r"[\d/\\._@#]")
_URL: Final = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`*,]{3,400}")
_MAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_FILE: Final = re.compile(r"[\w-]{1,64}(?:\.[\w-]{1,40}){0,3}\.[A-Za-z][A-Za-z0-9]{0,9}")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)+[\w-]*")
_NUMBER: Final = re.compile(r"[$€£+-]?\d+(?:[.,:/-]\d+)*(?:%|ms|s|kg|km|KB|MB|GB|TB|kb|mb|px|k|€)?")
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*|\d[\w-]*[A-Za-z_][\w-]*")
_SPLIT: Final = re.compile(r"[=&?]|::")
_EDGES: Final = ".,:;?=&-+~"
_FRONT: Final = ",:;?=&-+"
_ERROR: Final = re.compile(
    r"^.{0,80}?\b(?:[A-Z]\w*(?:Error|Exception)|[Ee]rror|ERROR|FAILED|fatal|panic|Traceback)\b.{0,160}$", re.MULTILINE
)


Sighting = tuple[str, str, float, int]
"""Kind, text, weight, and the place of the block that says it."""
Sightings = tuple[Sighting, ...]
Scan = Callable[[Message], Sightings]


def sightings(message: Message) -> Sightings:
    """What `message` says that must survive. A function of its bytes alone, so whoever keeps messages may keep it."""
    found: list[Sighting] = []
    for place, block in enumerate(message.blocks):
        if type(block) is Text:
            _see(found, block.text, 2.0 if message.role == "user" else 3.0, place)
        elif type(block) is ToolCall:
            for key, value in leaves(block.arguments):
                if key in _COMMAND_KEYS and value.strip():
                    found.append(("command", value.strip().splitlines()[0][:_LONGEST], 2.0, place))
                _see(found, value, 3.0, place)
        elif type(block) is ToolResult:
            _see(found, block.text, 1.0, place)
            errors = islice(_ERROR.finditer(_ends(block.text)), 3)
            found.extend(("error", error.group().strip(), 1.5, place) for error in errors)
    return tuple(found)


def _see(into: list[Sighting], text: str, weight: float, place: int) -> None:
    once: dict[str, str] = {}
    for kind, found in identifiers(text):
        once.setdefault(found, kind)
    into.extend((kind, found, weight, place) for found, kind in once.items())


class Ledger:
    """Sightings of identifiers, message by message; `best` lists what is worth its tokens.

    A plain accumulator: feed it messages in order with the turn they stand in.
    """

    def __init__(self, scan: Scan = sightings) -> None:
        self._scan = scan
        self._score: dict[str, float] = {}
        self._entry: dict[str, Entry] = {}
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
        for kind, text, weight, place in self._scan(message):
            self._note(kind, text, turn, sources[place], weight)

    def _source(self, block: Block) -> str:
        """The tool that a block calls or answers; "" for prose."""
        if type(block) is ToolCall:
            self._calls[block.name] = self._calls.get(block.name, 0) + 1
            self._sources[block.id] = block.name
            return block.name
        return self._sources.get(block.call_id, "") if type(block) is ToolResult else ""

    def best(self, budget: int, present: frozenset[str]) -> tuple[tuple[Entry, ...], int]:
        """The entries that fit `budget` tokens, in the order they were last seen, and how many were left out.

        What is `present` word for word elsewhere in the prompt is not listed again.
        """
        ranked = sorted(
            (text for text in self._score if text not in present),
            key=lambda text: (-self._score[text], text),
        )
        kept: list[Entry] = []
        left = budget
        for text in ranked:
            price = estimate(text) + 2
            if price <= left:
                left -= price
                kept.append(self._entry[text])
            elif left < 8:
                break
        order = {text: place for place, text in enumerate(self._entry)}
        kept.sort(key=lambda entry: (entry.turn, entry.source, order[entry.text]))
        return tuple(kept), len(ranked) - len(kept)

    def _note(self, kind: str, text: str, turn: int, source: str, weight: float) -> None:
        grown = weight * 2.0 ** (self._clock / _HALF_LIFE)
        self._score[text] = self._score.get(text, 0.0) + grown
        before = self._entry.get(text)
        self._entry[text] = Entry(
            kind=before.kind if before else kind,
            text=text,
            turn=turn,
            source=source or (before.source if before else ""),
        )


def identifiers(text: str) -> Iterator[tuple[str, str]]:
    """Pairs (kind, identifier) in `text`, in order, repeats included. Linear in its length."""
    text = _ends(text)
    if "http" in text:
        for found in _URL.finditer(text):
            yield "url", found.group().rstrip(_EDGES)
    for run in _RUN.findall(text):
        if len(run) > _LONGEST or _MARKS.search(run) is None or run.startswith("http"):
            continue
        for piece in _SPLIT.split(run) if _SPLIT.search(run) else (run,):
            piece = piece.lstrip(_FRONT).rstrip(_EDGES)
            if piece[:1] == "." and piece[:2] not in ("./", "..") and not piece[1:2].isalpha():
                piece = piece.lstrip(".")
            kind = _kind(piece)
            if kind:
                yield kind, piece


def named(texts: Iterable[str]) -> frozenset[str]:
    """All identifiers in `texts`."""
    return frozenset(found for text in texts for _, found in identifiers(text))


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


def _kind(piece: str) -> str:
    """What a run of characters is, "" for a word or noise."""
    if len(piece) < 2:
        return ""
    if "/" in piece or "\\" in piece:
        return _path_kind(piece)
    if piece[0].isdigit() or piece[0] in "$€£#":
        if _NUMBER.fullmatch(piece):
            return "number" if sum(map(str.isdigit, piece)) >= 2 else ""
        if _UUID.fullmatch(piece) or (piece[0] == "#" and piece[1:].isdigit()):
            return "id"
    if "@" in piece:
        return "id" if _MAIL.fullmatch(piece) else ""
    if _VERSION.fullmatch(piece):
        return "id"
    if "." in piece:
        return "path" if _FILE.fullmatch(piece.split(":")[0]) and len(piece) > 4 else ""
    if _NAME.fullmatch(piece):
        return "id" if any(map(str.isdigit, piece)) or "_" in piece.strip("_") else ""
    return ""


def _path_kind(piece: str) -> str:
    if _NUMBER.fullmatch(piece):
        return "number"
    return "path" if any(map(str.isalnum, piece)) and not piece.startswith("//") else ""


def _ends(text: str) -> str:
    if len(text) <= _SCAN:
        return text
    return text[: _SCAN // 2] + "\n" + text[-_SCAN // 2 :]
