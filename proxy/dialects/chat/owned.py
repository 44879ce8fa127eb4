"""A conversation that the gateway keeps, as a chat request names it: the reference, the whole request that a short one
stands for, and an answer that is told a second time.

Only wire JSON here. What is kept, and who may speak, is decided in `conversing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from proxy.core.errors import Malformed
from proxy.dialects.chat.own import NO_USAGE, chunked, completion
from proxy.dialects.strict import fail

REFERENCE: Final = "x-weirgate-conversation-id"
INTERJECT: Final = "x-weirgate-interject"
ONCE: Final = "idempotency-key"
HEADERS: Final = frozenset((REFERENCE.encode(), INTERJECT.encode(), ONCE.encode()))
"""Names of the headers that are read here."""
_MEMBER: Final = "conversation"
_LONGEST: Final = 128
_LONGEST_KEY: Final = 256
_YES: Final = frozenset(("true", "1", "yes"))


class _Named(msgspec.Struct):
    id: str


_NAMED: Final = msgspec.json.Decoder(str | _Named | None)


def reference(fields: Mapping[str, bytes], headers: Mapping[str, str]) -> str | None:
    """The conversation that a request goes on with: the member `conversation` (an id, or an object with one, as in
    OpenAI's Responses API) or the header; None where it names none. Raises Malformed."""
    stated = headers.get(REFERENCE)
    named: str | None = None
    if _MEMBER in fields:
        try:
            found = _NAMED.decode(fields[_MEMBER])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise fail("conversation is an id, or an object with one.", _MEMBER, "invalid_type") from None
        named = found.id if isinstance(found, _Named) else found
    if named is not None and stated and stated != named:
        raise fail(f"conversation and {REFERENCE} name two conversations.", _MEMBER, "invalid_request")
    named = named if named is not None else stated or None
    if named is not None and not 0 < len(named) <= _LONGEST:
        raise fail(f"conversation is an id of at most {_LONGEST} characters.", _MEMBER, "out_of_range")
    return named


def interjects(headers: Mapping[str, str]) -> bool:
    """Whether the message may go into a turn that runs. Raises Malformed."""
    value = headers.get(INTERJECT, "false").strip().lower()
    if value not in _YES and value not in ("false", "0", "no", ""):
        raise Malformed(f"{INTERJECT} is true or false.", code="out_of_range", param=INTERJECT)
    return value in _YES


def once(headers: Mapping[str, str]) -> str:
    """What marks a request as the one that was sent before ("": nothing). Raises Malformed."""
    key = headers.get(ONCE, "")
    if len(key) > _LONGEST_KEY:
        raise Malformed(f"{ONCE} has at most {_LONGEST_KEY} characters.", code="out_of_range", param=ONCE)
    return key


def whole_body(fields: Mapping[str, bytes], messages: Iterable[bytes]) -> bytes:
    """The request that a client would make who keeps the conversation itself: its members, with all `messages`."""
    parts: list[bytes] = []
    for name, raw in fields.items():
        if name == _MEMBER:
            continue
        value = b"[" + b",".join(messages) + b"]" if name == "messages" else raw
        parts.append(msgspec.json.encode(name) + b":" + value)
    return b"{" + b",".join(parts) + b"}"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was given to another request: its message as `wire`, how it ended, and that request's id."""

    wire: bytes
    finish: str
    request: str
    model: str


def told_again(told: Told, id: str, now: float, *, stream: bool, usage: bool) -> tuple[bytes, tuple[bytes, ...]]:
    """`told` as a body, or as the frames of a stream. Its tokens stand in the usage of the request it was made for."""
    message: dict[str, Any] = {**msgspec.json.decode(told.wire), "weirgate": {"answered": told.request}}
    if not stream:
        return msgspec.json.encode(
            completion(message, told.finish, id, int(now), told.model) | {"usage": dict(NO_USAGE)}
        ), ()
    for index, call in enumerate(message.get("tool_calls") or ()):
        call["index"] = index
    return b"", chunked(message, told.finish, id, int(now), told.model, include_usage=usage)
