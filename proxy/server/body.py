"""Reading a request body: its media type, its size, its compression.

Belongs here: from ASGI messages to the bytes of a JSON document. Never: parsing them. How long a client may take, and
how many bytes may arrive at all, `guard` enforces below; here a route states what it accepts, and a compressed body is
held to the same size once it is opened.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from proxy.core.errors import ClientLeft, Malformed, TooLarge, WrongMedia
from proxy.server.head import Headers, length

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_ZSTD = b"zstd"
_WINDOW_LOG = 23
"""8 MiB, the window that RFC 9659 bounds zstd to as a content coding."""

_STEP = 1024 * 1024
"""Bytes opened at a time; the event loop has a turn between two steps."""


def content_coding(headers: Headers) -> bytes:
    """Check that the body is JSON in UTF-8; return its coding, b"" or b"zstd".

    The type is required, and not for form's sake: a web page can post to a server on this machine without asking only
    as long as it does not call its body JSON. Raises WrongMedia.
    """
    media: bytes | None = None
    coding = b""
    for name, value in headers:
        if name == b"content-type":
            media = value if media is None else b""
        elif name == b"content-encoding":
            coding = value if coding == b"" else b"several"
    if media != b"application/json" and not (media and _is_json(media)):
        raise WrongMedia("Send the body as JSON in UTF-8, with the header content-type: application/json.")
    if coding:
        coding = coding.strip().lower()
        if coding == b"identity":
            return b""
        if coding != _ZSTD:
            raise WrongMedia("Request bodies may be sent as they are or compressed with zstd; no other way is read.")
    return coding


async def read_body(receive: Receive, headers: Headers, *, limit: int) -> bytes:
    """The whole body, opened if it was compressed.

    `limit` bounds both forms, in bytes. Check the caller's key before: until the first `receive` no body is asked for.
    Raises WrongMedia, TooLarge, Malformed (a broken zstd frame), and ClientLeft where the client went away or `guard`
    has answered for us (too slow, over its own limit).
    """
    coding = content_coding(headers)
    if length(headers) > limit:
        raise _too_large(limit)
    first = await receive()
    if first["type"] != "http.request":
        raise ClientLeft(said=False)
    body: bytes = first.get("body", b"")
    if first.get("more_body", False):
        body = await _gather(receive, body, limit)
    elif len(body) > limit:
        raise _too_large(limit)
    return await _open(body, limit) if coding else body


async def _gather(receive: Receive, start: bytes, limit: int) -> bytes:
    pieces = [start]
    size = len(start)
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft(said=False)
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        more = message.get("more_body", False)
    return b"".join(pieces)


async def _open(packed: bytes, limit: int) -> bytes:
    """One zstd frame and nothing behind it. What it declares of its size is not believed; what comes out is counted."""
    frame = ZstdDecompressor(options={DecompressionParameter.window_log_max: _WINDOW_LOG})
    pieces: list[bytes] = []
    size = 0
    feed = packed
    while not frame.eof:
        try:
            piece = frame.decompress(feed, max_length=_STEP)
        except ZstdError:
            raise Malformed("The body is not a valid zstd frame, or its window is over 8 MiB.") from None
        feed = b""
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if frame.needs_input and not frame.eof:
            raise Malformed("The zstd frame is cut short.")
        if len(piece) == _STEP:
            await asyncio.sleep(0)
    if frame.unused_data:
        raise Malformed("There is more behind the zstd frame; send one frame.")
    return b"".join(pieces)


def _is_json(media: bytes) -> bool:
    kind, *parameters = (part.strip() for part in media.lower().split(b";"))
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return False
    charsets = [value.strip(b'"') for name, _, value in (p.partition(b"=") for p in parameters) if name == b"charset"]
    return all(charset in (b"utf-8", b"utf8", b"us-ascii") for charset in charsets)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than the limit of {limit} bytes.")
