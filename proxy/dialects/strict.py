"""What may pass as JSON: UTF-8, one value, no duplicate members, bounded depth.

Bytes that are forwarded unread must still be what we took them for, or the provider would read another request than
the one we measured. Every check is linear in the size of what it reads, whatever stands in there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from proxy.core.errors import Malformed

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BACKSLASH: Final = ord("\\")
"""As a number: to look for bytes in bytes costs ten times as much (Python tries first whether they are one)."""
_BRACKETS: Final = re.compile(rb"[\[\]{}]")
_PLAIN: Final = b'"tfn'
_SPACED: Final = b'": '
_NAME: Final = re.compile(r"[a-z_]{1,32}")
"""A name that may be repeated in an error: a parameter misspelt, and nothing that could be content."""
_NEAR: Final = 64
"""Bytes in which a writer that puts blanks behind colons has shown it."""
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


class _Twice(Exception):
    pass


def _once(pairs: list[tuple[str, object]]) -> None:
    """What an object is worth while members are counted: nothing but that each name stands there once."""
    if len(dict(pairs)) != len(pairs):
        raise _Twice


_WHOLE: Final = json.JSONDecoder(object_pairs_hook=_once)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def fail(message: str, param: str | None = None, code: str = "invalid_json") -> Malformed:
    """A Malformed with the code of the error contract."""
    return Malformed(message, code=code, param=param)


def check_utf8(body: bytes) -> None:
    """Raises Malformed unless `body` is UTF-8 (a byte order mark included)."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError:
        raise fail("The body is not valid UTF-8.") from None


def check_depth(raw: bytes, most: int, param: str | None = None) -> None:
    """Raises Malformed where objects and arrays nest deeper than `most`."""
    if raw.count(b"{") + raw.count(b"[") <= most:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", raw)):
        if bracket in b"[{":
            depth += 1
            if depth > most:
                raise fail(f"The JSON nests deeper than {most} levels.", param)
        else:
            depth -= 1


def check_unique(raw: bytes, param: str | None = None) -> None:
    """Raises Malformed where an object names a member twice, however the name is written. `raw` is UTF-8."""
    try:
        _WHOLE.decode(raw.decode())
    except _Twice:
        raise fail("An object names the same member twice.", param) from None
    except (ValueError, RecursionError):
        raise fail("The body is not valid JSON.", param) from None


def check_value(raw: bytes, most: int, param: str | None = None) -> None:
    """`check_depth` and `check_unique` in one: most of an object is strings, which need neither."""
    inside = _inside(raw) if most else None
    for value in (raw,) if inside is None else inside:
        check_depth(value, most if inside is None else most - 1, param)
        check_unique(value, param)


def _inside(raw: bytes) -> list[bytes] | None:
    """The members of an object that are no strings or constants; None where `raw` has to be looked at as a whole. If
    they all add up to its size, they are named once each, without blanks and escapes."""
    if raw.find(_SPACED, 0, _NEAR) > 0:
        return None
    try:
        members = _MEMBERS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    size = 1
    found: list[bytes] = []
    for name, member in members.items():
        value = bytes(member)
        size += len(name) + len(value) + 4
        if value[0] not in _PLAIN:
            found.append(value)
    return found if size == len(raw) else None


def without_lone_surrogates(body: bytes) -> bytes:
    """`body` with each escaped lone surrogate replaced by an escape of the same length; the same object if none.

    JavaScript clients send them for emoji that were cut in half.
    """
    if _BACKSLASH not in body or (body.find(b"\\ud") < 0 and body.find(b"\\uD") < 0):
        return body
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found.group(1) else found.group(), body)


def read_object(body: bytes, known: Collection[str], depth: int) -> dict[str, Any]:
    """The object that a small body of ours is, of the members `known` alone. Raises Malformed."""
    check_utf8(body)
    check_depth(body, depth)
    check_unique(body)
    try:
        value = msgspec.json.decode(without_lone_surrogates(body))
    except (msgspec.DecodeError, RecursionError):
        raise fail("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise fail("The body is not a JSON object.")
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise unknown_parameter(unknown, f"The body takes {', '.join(known)}, and nothing else.")
    return value


def unknown_parameter(name: str, message: str) -> Malformed:
    """An error that says `message`, and names what is unknown where that can be a slip of the pen."""
    return fail(message, name if _NAME.fullmatch(name) else None, "unknown_parameter")
