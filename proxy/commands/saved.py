"""A conversation in a file, in the forms that people have: a chat request, a list of messages, a line of JSONL.

Belongs here: from a name on the command line to the members of a request. Never: what is done with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from proxy.commands.outcome import WRONG, NotDone, say

_MOST: Final = 256 * 1024 * 1024


def content(name: str) -> bytes:
    """What the file holds, without a byte order mark; `-` is stdin. Raises NotDone."""
    try:
        data = sys.stdin.buffer.read(_MOST + 1) if name == "-" else Path(name).read_bytes()
    except OSError as failure:
        raise NotDone(f"{name} cannot be read: {failure.strerror}", WRONG) from None
    if len(data) > _MOST:
        raise NotDone(f"{name} is larger than {_MOST >> 20} MiB", WRONG)
    return data.removeprefix(b"\xef\xbb\xbf")


def conversation(data: bytes, line: int | None) -> dict[str, msgspec.Raw]:
    """The members of one JSON value, or of the chosen line of several. Raises NotDone."""
    data = data.strip()
    whole = members(data) if line is None else None
    if whole is not None:
        return whole
    lines = [each for each in data.split(b"\n") if each.strip()]
    if not lines:
        raise NotDone("the file is empty", WRONG)
    chosen = line or 1
    if chosen > len(lines):
        raise NotDone(f"there is no line {chosen}: the file has {len(lines)}", WRONG)
    found = members(lines[chosen - 1])
    if found is None:
        where = f"line {chosen}" if len(lines) > 1 else "the file"
        raise NotDone(f"{where} is not valid JSON, or neither a chat request nor a list of messages", WRONG)
    if len(lines) > 1:
        say(f"conversation {chosen} of {len(lines)}" + ("" if line else "; --line N takes another"))
    return found


def members(data: bytes) -> dict[str, msgspec.Raw] | None:
    """Those of a chat request, or a list of messages as one; None where `data` is neither."""
    try:
        if data[:1] == b"[":
            msgspec.json.decode(data, type=list[msgspec.Raw])
            return {"messages": msgspec.Raw(data)}
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
