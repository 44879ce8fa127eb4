"""What a request head must look like before anything behind it is run, and the id that a request goes by.

Belongs here: pure rules over the parsed head (names in lower case, values as bytes). Never: the socket, timers, or
what a route wants (media types are in `body`, keys in `auth`). The parser, llhttp, refuses most malformed heads; these
are the ones it lets through, each of which two servers in a row may read differently (research/reliability.md 0.6,
I-06, I-53, I-55).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from proxy.core.errors import Malformed, MethodNotAllowed, TooLarge, WeirgateError

Headers = Sequence[tuple[bytes, bytes]]

_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
"""The fields that decide whom a request is for and where it ends: each may be stated once."""

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

_PERCENT = ord("%")
_METHODS = frozenset(METHODS.encode().split(b", "))
_HOST = re.compile(rb"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_BASE32 = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in range(256))


def fault(
    method: bytes,
    url: bytes,
    version: str,
    headers: Headers,
    *,
    body_bytes: int,
    served_hosts: frozenset[bytes] = frozenset(),
) -> WeirgateError | None:
    """The first thing wrong with this head, or None.

    `body_bytes` is the largest body that may be declared; `served_hosts` are the only hosts answered for (any, where
    it is empty). A Host is required of HTTP/1.0 too: without it nobody can say whom the request was for.
    """
    if method not in _METHODS:
        return MethodNotAllowed("This method is not supported.")
    if not url.startswith(b"/") or (_PERCENT in url and b"%00" in url) or not url.isascii():
        return bad_http("The request target must be a path that begins with '/', in ASCII and without NUL.")
    if version not in ("1.1", "1.0"):
        return bad_http("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _FRAMING:
            if name in fields:
                return bad_http("Host, Content-Length and Transfer-Encoding may each be stated once.")
            fields[name] = value
    host = host_name(fields.get(b"host", b""))
    if host is None:
        return bad_http("One Host header is required: a host and an optional port.")
    if served_hosts and host not in served_hosts:
        return bad_http("This server does not answer for that Host; the operator lists those it does.")
    length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != b"chunked" or version != "1.1":
            return bad_http("The body's end is ambiguous: send Content-Length, or Transfer-Encoding: chunked alone.")
    elif length is not None:
        if not length.isdigit():
            return bad_http("Content-Length must be a number.")
        # A number of more digits than any limit has is not converted: int() is quadratic in them.
        if len(length) > 18 or int(length) > body_bytes:
            return TooLarge(f"The request body is larger than the limit of {body_bytes} bytes.")
    return None


def length(headers: Headers) -> int:
    """The body's declared length; 0 where none is. The head is without `fault`."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0


def host_name(value: bytes) -> bytes | None:
    """The host in a Host header, lower case and without its port; None where it is not one.

    `Host: evil/?` is how a URL rebuilt from it came to name another route (I-06).
    """
    found = _HOST.fullmatch(value)
    return None if found is None else found[1].lower()


def bad_http(message: str) -> Malformed:
    """400, and the connection closes: what follows on it cannot be trusted to be a request."""
    return Malformed(message, code="bad_http")


def request_id(headers: Headers, draw: Callable[[int], bytes] = os.urandom) -> str:
    """The client's `x-request-id` if it is a plain token, else one of ours. Echoed and logged, never read (I-31).

    `draw` gives random bytes.
    """
    for name, value in headers:
        if name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                return value.decode("ascii")
            break
    return new_request_id(draw)


def new_request_id(draw: Callable[[int], bytes] = os.urandom) -> str:
    """`req_` and 26 random base32 characters (130 bits)."""
    return "req_" + draw(26).translate(_BASE32).decode("ascii")
