"""What an identifier looks like: paths, URLs, ids, numbers, names in code. Found by shape alone, in linear time.

No language and no format is parsed: the text may be cut anywhere, and be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 240
"""Characters; a longer match is prose, data or a blob, not an identifier."""
_SCAN: Final = 200_000
"""Characters of one text that are looked at, half from each end."""

# Two linear steps: runs of characters that identifiers are made of, then an anchored look at each short run.
_GUTTER: Final = re.compile(r"^[ \t]{0,12}(\d{1,7})(?:\t|\u2192| ?[|\u2502])", re.MULTILINE)
"""Numbers in front of the lines of a listing: places in an output, hardly names of anything."""
_RUN: Final = re.compile(r"(?:[\w./@#$€£~+\\:=&?%-]|(?<=\d),(?=\d{3}))+")
_MARKS: Final = re.compile(r"[\d/\\._@#]")
_GLUED: Final = re.compile(r"[=&?\\:]|-\d+-")
_SPLIT: Final = re.compile(r"[=&?]|::")
_ESCAPED_DOT: Final = "\\."
_ESCAPE: Final = re.compile(r"\\+(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[A-Za-z])?")
_BACKSLASHED: Final = re.compile(
    r"[A-Za-z]:(?:\\{1,2}[\w@$.+-]+)+|\w[\w$-]*(?:\\{1,2}[A-Z][\w$-]+)+"
    r"|(?:\.{1,2}\\{1,2})?(?:[\w$-]+\\{1,2})+[\w$-]+(?:\.[\w-]{1,40}){0,3}\.([A-Za-z][A-Za-z0-9]{0,9})(?::\d+){0,2}"
)
"""Paths and names with backslashes, by their drive, their capitals or the file they end in. Everywhere else a backslash
escapes what follows it: a line end in quoted text, an alternative in a pattern (`one\\|two`)."""
_HIT: Final = re.compile(
    r"(?:(.*?\.([A-Za-z][A-Za-z0-9]{0,9}))(?:([:-])(\d{1,7})\3(?=\D|$)|:(?=[A-Za-z_]))|(\d{1,7}):(?=[A-Za-z_]))(.*)"
)
"""A hit of a search, as `grep -n` prints it: file, number of the line and what it begins with, glued together. Taken
whole, each hit would say its path again."""
_EDGES: Final = ".,:;?=&-+~"
_FRONT: Final = ",:;?=&-+"
_URL: Final = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`*,]{3,400}")
_MAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_NUMBER: Final = re.compile(r"[$€£+-]?\d+(?:[.,:/-]\d+)*(?:%|ms|s|kg|km|KB|MB|GB|TB|kb|mb|px|k|€)?")
_ID: Final = re.compile(r"#?\w[\w.:+-]*")
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*")
_FILE: Final = re.compile(r"[\w-]{1,64}(?:\.[\w-]{1,40}){0,3}\.([A-Za-z][A-Za-z0-9]{0,9})(?::\d+){0,2}")
_ENDINGS: Final = frozenset(
    """bat bin c cc cfg cjs conf cpp cs css csv cxx db diff doc docx dockerfile env ex exe exs gif go gradle gz h hpp
    htm html ico ini ipynb java jpeg jpg js json jsonl jsx kt lock log lua m map md mjs mod mp3 mp4 odt parquet
    patch pdf php pl png pony ppt pptx proto ps1 py pyi r rb rs rst sass scala scss sh so sql sqlite sum svelte
    svg swift tar tex tf toml ts tsv tsx txt vue wasm wav webp xls xlsx xml yaml yml zip zsh""".split()
)
"""What the names of files end in; a dotted name with another ending is a name in code."""


def identifiers(text: str) -> Iterator[tuple[str, str]]:
    """Pairs (kind, identifier) in `text`, in order, repeats included. Linear in its length.

    Kinds: url, path, id (letters and digits, addresses, versions, dates), number, name (in code), line (the number of
    a line in a listing).
    """
    text = ends(text)
    lines = _GUTTER.findall(text)
    if lines:
        text = _GUTTER.sub(" ", text)
    if "http" in text:
        for found in _URL.finditer(text):
            yield "url", found.group().rstrip(_EDGES)
    for run in _RUN.findall(text):
        if len(run) > LONGEST or _MARKS.search(run) is None or run.startswith("http"):
            continue
        if _GLUED.search(run) is not None:
            yield from _pieces(run)
        else:
            piece = run.lstrip(_FRONT).rstrip(_EDGES)
            kind = kind_of(piece)
            if kind:
                yield kind, piece
    for number in lines:
        if len(number) > 1:
            yield "line", number


def _pieces(run: str) -> Iterator[tuple[str, str]]:
    """The identifiers in a run that may be glued together of several."""
    for piece in _SPLIT.split(run):
        if "\\" in piece and not _backslashed(piece.rstrip(_EDGES)):
            for part in _ESCAPE.split(piece.replace(_ESCAPED_DOT, ".")):
                yield from _taken_apart(part)
        else:
            yield from _taken_apart(piece)


def _taken_apart(piece: str) -> Iterator[tuple[str, str]]:
    """What `piece` is, or the file, the number and the rest, where it is a hit of a search."""
    hit = _HIT.fullmatch(piece)
    if hit is not None:
        file, ending, _, line, alone, rest = hit.groups()
        if file is None or ending.lower() in _ENDINGS:
            if file is not None:
                yield from _kept(file)
            number = line or alone
            if number is not None and len(number) > 1:
                yield "line", number
            piece = rest
    yield from _kept(piece)


def _kept(piece: str) -> Iterator[tuple[str, str]]:
    piece = piece.lstrip(_FRONT).rstrip(_EDGES)
    kind = kind_of(piece)
    if kind:
        yield kind, piece


def _backslashed(piece: str) -> bool:
    found = _BACKSLASHED.fullmatch(piece)
    return found is not None and (found.group(1) is None or found.group(1).lower() in _ENDINGS)


def kind_of(piece: str) -> str:
    """What a run of characters is, "" for a word or noise."""
    if len(piece) < 2:
        return ""
    if "\\" in piece:
        return "path" if _backslashed(piece) else ""
    if "/" in piece:
        if _NUMBER.fullmatch(piece):
            return "number"
        return "path" if any(map(str.isalnum, piece)) and not piece.startswith("//") else ""
    if "@" in piece:
        return "id" if _MAIL.fullmatch(piece) else ""
    if _NUMBER.fullmatch(piece):
        return "number" if sum(map(str.isdigit, piece)) >= 2 else ""
    if "." in piece and (file := _FILE.fullmatch(piece)):
        return "path" if file.group(1).lower() in _ENDINGS else "name"
    if any(map(str.isdigit, piece)):
        return "id" if _ID.fullmatch(piece) else ""
    return "name" if "_" in piece.strip("_") and _NAME.fullmatch(piece) else ""


def subpaths(path: str) -> Iterator[str]:
    """The shorter paths that stand inside `path` word for word: its tails and its folders, at most twelve deep."""
    parts = path.split("/", 13)
    if len(parts) > 1:
        for place in range(1, len(parts)):
            yield "/".join(parts[place:])
            yield "/".join(parts[:place])


def ends(text: str) -> str:
    """`text`, or its two ends where it is longer than anybody should scan."""
    if len(text) <= _SCAN:
        return text
    return text[: _SCAN // 2] + "\n" + text[-_SCAN // 2 :]
