"""The form that our errors take on the wire: the OpenAI error object, and the headers that go with it.

Belongs here: turning an error into bytes. Never: deciding that something is an error, reading the clock, or any text of
the client's (messages are ours; `param` names a field). One function serves the endpoints, the streams and the protocol
layer, so a refusal looks the same wherever it was decided.
"""

from __future__ import annotations

import math

import msgspec

from proxy.core.errors import Internal, WeirgateError

_PARAM_LIMIT = 256


def error_body(error: BaseException) -> bytes:
    """`{"error":{"message","type","param","code"}}`, always with the four members.

    Anything that is not ours is told as an internal error, without its text: it may hold content.
    """
    known = error if isinstance(error, WeirgateError) else Internal("The gateway failed to serve this request.")
    said = {
        "message": _encodable(known.message),
        "type": known.type,
        "param": None if known.param is None else _encodable(known.param)[:_PARAM_LIMIT],
        "code": known.code,
    }
    return msgspec.json.encode({"error": said})


def error_frame(error: BaseException) -> bytes:
    """The same object as an unnamed SSE frame, for a stream that has begun. `[DONE]` must not follow it.

    The OpenAI SDKs raise on a `data:` frame with an `error` member; a named event they would ignore.
    """
    return b"data: " + error_body(error) + b"\n\n"


def error_response(
    error: BaseException, request_id: str, *, close: bool = False, allow: str | None = None
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body for `error`.

    `close` ends the connection; errors about the transport itself (bad_http, a slow or oversized head, shutting down)
    always do. `allow` lists the methods of a 405. `x-should-retry` is read by the OpenAI SDKs and overrules their own
    guess; `retry-after` is in whole seconds, rounded up.
    """
    body = error_body(error)
    ours = isinstance(error, WeirgateError)
    status = error.status if isinstance(error, WeirgateError) else 500
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("latin-1", "replace")),
        (b"x-should-retry", b"true" if ours and error.retry else b"false"),  # type: ignore[attr-defined]
    ]
    if isinstance(error, WeirgateError) and error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(0, math.ceil(error.retry_after))))
    if allow is not None:
        headers.append((b"allow", allow.encode("ascii")))
    if close or closes(error):
        headers.append((b"connection", b"close"))
    return status, headers, body


def closes(error: BaseException) -> bool:
    """Whether the connection cannot, or should not, carry another request after this answer."""
    if not isinstance(error, WeirgateError):
        return False
    return error.status in (408, 431) or error.code in ("bad_http", "shutting_down")


def _encodable(text: str) -> str:
    """A lone surrogate in a field name must not turn a 400 into a 500."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
