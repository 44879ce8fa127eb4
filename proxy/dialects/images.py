"""Size and identity of media in a message, read from headers; nothing is ever decoded.

Here stand the few header layouts that tell an image's width and height, and how an `image_url` becomes a `Media`. A
decoder never belongs here: the bytes are a stranger's, and 48 KB of PNG can claim 400 megapixels. What cannot be read
has no pixels, and no input raises.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import Literal

from proxy.core.conversation import Media

HEAD = 256 * 1024
"""Bytes of an image that are looked at: a JPEG may hold colour profiles and previews before its size."""
_DIGEST = 16
_SEGMENTS = 500
_MOST = 1 << 31
_ESCAPE = re.compile(rb"%([0-9a-fA-F]{2})")
_BLANKS = b" \t\r\n\f\v"
_URLSAFE = bytes.maketrans(b"-_", b"+/")
# Start of frame: C0 to CF, but C4 (Huffman tables), C8 (reserved) and CC (arithmetic coding).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that stand alone, without a length: TEM, RST0 to RST7, SOI.
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def pixels(head: bytes) -> tuple[int, int] | None:
    """Width and height that the header in `head` states, as stored (EXIF rotation left aside), else None.

    PNG, JPEG, GIF, WebP and BMP; the kind is known by the bytes, never by a name.
    """
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = _png(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg(head)
    elif head.startswith((b"GIF87a", b"GIF89a")):
        size = _little(head, 6, 2), _little(head, 8, 2)
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        size = _webp(head)
    elif head.startswith(b"BM"):
        size = _bmp(head)
    else:
        return None
    width, height = size
    return size if 0 < width < _MOST and 0 < height < _MOST else None


def media_of(url: str, *, detail: str | None = None) -> Media:
    """The Media behind a chat `image_url`: a data URL by its content, any other by its address.

    `size` is what it takes on the wire, in bytes. A data URL that cannot be decoded is known by its text.
    """
    raw = url.encode("utf-8", "replace")
    if raw[:5].lower() != b"data:":
        return Media(kind="image", digest=_digest(raw), size=len(raw), detail=detail)
    about, comma, rest = raw[5:].partition(b",")
    content = _content(about.lower(), rest) if comma else None
    if content is None:
        return Media(kind=_kind(about), digest=_digest(raw), size=len(raw), detail=detail)
    size = pixels(content[:HEAD])
    return Media(
        kind="image" if size else _kind(about),
        digest=_digest(content),
        size=len(raw),
        width=size[0] if size else None,
        height=size[1] if size else None,
        detail=detail,
    )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST).hexdigest()


def _kind(about: bytes) -> Literal["image", "audio", "file"]:
    kind = about.lstrip(_BLANKS)[:6].lower()
    return "image" if kind == b"image/" else "audio" if kind == b"audio/" else "file"


def _content(about: bytes, rest: bytes) -> bytes | None:
    """The bytes of a data URL; None where its base64 is none. Blanks, missing padding and `-_` are forgiven."""
    if b"%" in rest:
        rest = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), rest)
    if not about.rstrip(_BLANKS).endswith(b";base64"):
        return rest
    packed = rest.translate(_URLSAFE, _BLANKS).rstrip(b"=")
    try:
        return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)
    except ValueError:
        return None


def _big(data: bytes, at: int, length: int) -> int:
    """The number at `at`, highest byte first; 0 where the data ends before."""
    part = data[at : at + length]
    return int.from_bytes(part, "big") if len(part) == length else 0


def _little(data: bytes, at: int, length: int) -> int:
    part = data[at : at + length]
    return int.from_bytes(part, "little") if len(part) == length else 0


def _png(data: bytes) -> tuple[int, int]:
    # Apple's variant puts a CgBI chunk of 4 bytes before the header chunk.
    start = 28 if data[12:16] == b"CgBI" else 12
    if data[start : start + 4] != b"IHDR":
        return 0, 0
    return _big(data, start + 4, 4), _big(data, start + 8, 4)


def _jpeg(data: bytes) -> tuple[int, int]:
    """Walk the segments to the start of frame. Each holds a length; what stands between segments is fill."""
    at = 2
    for _ in range(_SEGMENTS):
        at = data.find(b"\xff", at)
        if at < 0:
            break
        while data[at : at + 1] == b"\xff":
            at += 1
        marker = _big(data, at, 1)
        if marker in _FRAMES:
            return _big(data, at + 6, 2), _big(data, at + 4, 2)
        # Start of scan: entropy-coded data follows, and the size ought to have come before.
        if marker == 0xDA:
            break
        at += 1 if marker in _BARE or marker == 0 else 1 + max(2, _big(data, at + 1, 2))
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return 1 + _little(data, 24, 3), 1 + _little(data, 27, 3)
    if chunk == b"VP8L" and data[20:21] == b"\x2f" and len(data) >= 25:
        bits = _little(data, 21, 4)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return 0, 0


def _bmp(data: bytes) -> tuple[int, int]:
    # OS/2's header of 12 bytes has 16-bit sizes; all others 32-bit, with a negative height for top-down images.
    if _little(data, 14, 4) == 12:
        return _little(data, 18, 2), _little(data, 20, 2)
    height = _little(data, 22, 4)
    return _little(data, 18, 4), (1 << 32) - height if height >= _MOST else height
