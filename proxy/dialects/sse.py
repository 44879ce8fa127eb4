"""The line format of server-sent events (WHATWG HTML 9.2), incrementally and in bounded memory.

Reads what any server sends: CR, LF or CRLF, a byte order mark, comments, several data lines, no blank behind the
colon. Each event comes back with its own bytes, so that it can be sent on as it was.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_END: Final = re.compile(rb"\n(?:\r\n?|\n)|\r(?:\n(?:\r\n?|\n)|\r\n?)")
"""Two line ends. Written out by their first characters, it is found six times as fast as as a repetition."""
_LINES: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
DONE: Final = b"[DONE]"
_BLANK: Final = b"\n\n"
_DATA: Final = b"data: "
_NAMED: Final = len(_DATA)
_FEED: Final = b"\n"
_FED: Final = ord("\n")
_RETURN: Final = ord("\r")


class SseEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event. `data` is None for a block without data lines (comments); `raw` is the block with its end."""

    raw: bytes
    data: bytes | None
    name: str = ""


class LineTooLong(Exception):
    """An event exceeded the bound: the stream is not worth reading on."""


class SseReader:
    """Feed bytes, get events. `most` bounds one event in bytes."""

    def __init__(self, most: int = 8 << 20) -> None:
        self._rest = b""
        self._most = most
        self._begun = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises LineTooLong."""
        looked = len(self._rest)
        data = self._rest + chunk if looked else chunk
        if not self._begun:
            if _BOM.startswith(data):
                self._rest = data if data != _BOM else b""
                self._begun = data == _BOM
                return []
            self._begun = True
            data = data.removeprefix(_BOM)
            looked = 0
        found, self._rest = _lines_fed(data, looked) if _RETURN not in data else _parted(data, looked)
        if len(self._rest) > self._most:
            raise LineTooLong
        return found

    def finish(self) -> list[SseEvent]:
        """What stood there without an end when the stream closed (some servers forget it)."""
        rest, self._rest = self._rest, b""
        return [read_event(rest.rstrip(b"\r\n") + b"\n\n")] if rest.strip() else []


def _lines_fed(data: bytes, looked: int) -> tuple[list[SseEvent], bytes]:
    """As `_parted`, where no line ends otherwise than with a line feed. One is looked for at a time: two at once take
    a step for each byte, and most events are a single line."""
    found: list[SseEvent] = []
    if looked and data.find(_BLANK, looked - 1) < 0:
        return found, data
    start, size = 0, len(data)
    # An event that ends the piece, as most do, is the last one, and nothing is looked for behind it.
    while start < size and (feed := data.find(_FEED, start)) >= 0:
        end = feed + 2
        if end <= size and data[feed + 1] == _FED:
            raw = data[start:end]
            found.append(SseEvent(raw=raw, data=raw[_NAMED:-2]) if raw.startswith(_DATA) else read_event(raw))
        else:
            end = data.find(_BLANK, end) + 2
            if end == 1:
                break
            found.append(read_event(data[start:end]))
        start = end
    return found, data[start:]


def _parted(data: bytes, looked: int) -> tuple[list[SseEvent], bytes]:
    """The events in `data`, and what of one has come behind them. None ends before `looked`."""
    found: list[SseEvent] = []
    start = 0
    # An end may have begun in the last three bytes of what was looked at before.
    for end in _END.finditer(data, max(0, looked - 3)):
        if not (end.end() == len(data) and data.endswith(b"\r")):
            found.append(read_event(data[start : end.end()]))
            start = end.end()
    return found, data[start:]


def frame(data: bytes) -> bytes:
    """One data frame of our own."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment; clients skip it, connections stay warm."""
    return b": " + text.encode() + b"\n\n"


def read_event(raw: bytes) -> SseEvent:
    """The event that `raw` is, its end (two line ends) included."""
    if raw.startswith(_DATA) and raw.find(_FEED) == len(raw) - 2 and _RETURN not in raw:
        return SseEvent(raw=raw, data=raw[_NAMED:-2])
    data: list[bytes] = []
    name = ""
    for line in _LINES.split(raw):
        if line.startswith(b"data"):
            value = line[4:]
            if value[:1] == b":":
                data.append(value[2:] if value[1:2] == b" " else value[1:])
            elif not value:
                data.append(b"")
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
    return SseEvent(raw=raw, data=b"\n".join(data) if data else None, name=name)
