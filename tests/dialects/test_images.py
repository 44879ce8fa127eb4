"""Pixels come from headers alone, and a media's identity is its content."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.images import media_of, pixels
from tests import data

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\0\0\0"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200)
BMP = b"BM" + bytes(12) + struct.pack("<Iii", 40, 31, -17)
BMP_OS2 = b"BM" + bytes(12) + struct.pack("<IHH", 12, 31, 17)
WEBP = b"RIFF\0\0\0\0WEBP"
VP8 = WEBP + b"VP8 " + bytes(7) + b"\x9d\x01\x2a" + struct.pack("<HH", 0x4000 | 550, 368)
VP8L = WEBP + b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 385 | 394 << 14)
VP8X = WEBP + b"VP8X" + bytes(8) + (1999).to_bytes(3, "little") + (999).to_bytes(3, "little")
FRAME = b"\xff\xc2\0\x11\x08" + struct.pack(">HH", 48, 64) + bytes(10)


def jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments) + FRAME


def segment(marker: int, length: int) -> bytes:
    """A segment full of what looks like a start of frame."""
    return bytes((0xFF, marker)) + struct.pack(">H", length + 2) + (b"\xff\xc0\0\x11\x08\0\x01\0\x01" * length)[:length]


HEADERS = [
    (PNG, (640, 480)),
    (GIF, (320, 200)),
    (BMP, (31, 17)),
    (BMP_OS2, (31, 17)),
    (VP8, (550, 368)),
    (VP8L, (386, 395)),
    (VP8X, (2000, 1000)),
    (jpeg(), (64, 48)),
]


@pytest.mark.parametrize(("head", "size"), HEADERS)
def test_each_format_tells_its_size_from_its_header(head: bytes, size: tuple[int, int]) -> None:
    assert pixels(head) == size


@pytest.mark.parametrize("head", [head for head, _ in HEADERS])
def test_a_header_cut_anywhere_has_no_size_or_the_true_one(head: bytes) -> None:
    size = pixels(head)
    assert {pixels(head[:length]) for length in range(len(head))} <= {None, size}
    assert pixels(head[:8]) is None


def test_apples_png_variant_hides_its_header_behind_one_more_chunk() -> None:
    assert pixels(PNG[:8] + struct.pack(">I4sII", 4, b"CgBI", 0, 0) + PNG[8:]) == (640, 480)


def test_a_preview_inside_a_jpegs_metadata_is_not_taken_for_the_image() -> None:
    assert pixels(jpeg(segment(0xE1, 60_000), segment(0xE2, 60_000), segment(0xC4, 40))) == (64, 48)


def test_fill_and_markers_without_a_length_do_not_lead_a_jpeg_astray() -> None:
    assert pixels(jpeg(b"\xff\xff\xff\xd0", b"\xff\x01", b"junk")) == (64, 48)


def test_a_jpeg_that_starts_to_draw_before_it_said_its_size_has_none() -> None:
    assert pixels(b"\xff\xd8\xff\xda\0\x02" + FRAME) is None
    assert pixels(b"\xff\xd8\xff") is None


def test_a_jpeg_of_endless_segments_is_given_up() -> None:
    assert pixels(jpeg(b"\xff\xe0\0\x02" * 100)) == (64, 48)
    assert pixels(jpeg(b"\xff\xe0\0\x02" * 10_000)) is None


@pytest.mark.parametrize(
    "head",
    [b"", b"<svg width='10'>", b"RIFF\0\0\0\0WAVE" + VP8X[12:], VP8[:23] + bytes(7), b"\x89PNG\r\n\x1a\n" + bytes(30)],
)
def test_what_is_no_known_image_has_no_size(head: bytes) -> None:
    assert pixels(head) is None


def test_an_image_of_no_width_or_of_absurd_height_has_no_size() -> None:
    assert pixels(PNG[:16] + bytes(4) + PNG[20:]) is None
    assert pixels(PNG[:20] + b"\xff\xff\xff\xff" + PNG[24:]) is None


@given(st.sampled_from([head for head, _ in HEADERS]), st.binary(max_size=200), st.integers(0, 40))
def test_no_bytes_make_it_raise(head: bytes, noise: bytes, at: int) -> None:
    for bytes_ in (noise, head[:at] + noise, head[:at] + noise + head[at:]):
        size = pixels(bytes_)
        assert size is None or (size[0] > 0 and size[1] > 0)


def data_url(content: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def test_a_data_url_is_known_by_its_content_and_sized_as_it_travels() -> None:
    url = data_url(PNG)
    media = media_of(url, detail="low")
    assert media.kind == "image"
    assert media.digest == hashlib.blake2b(PNG, digest_size=16).hexdigest()
    assert (media.size, media.width, media.height, media.detail) == (len(url), 640, 480, "low")


def test_the_same_bytes_are_the_same_media_however_they_were_packed() -> None:
    content = PNG + bytes(range(256))
    packed = base64.b64encode(content).decode()
    folded = "\r\n".join(packed[at : at + 76] for at in range(0, len(packed), 76))
    forms = [
        packed.rstrip("="),
        folded,
        base64.urlsafe_b64encode(content).decode(),
        packed.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
    ]
    urls = [f"data:image/png;base64,{form}" for form in forms]
    urls += [f"DATA:image/jpeg;name=a.jpg;BASE64,{packed}", f"data:;base64,{packed}"]
    assert {media_of(url).digest for url in urls} == {media_of(data_url(content)).digest}
    assert {media_of(url).kind for url in urls} == {"image"}


def test_the_kind_follows_the_mime_type_where_the_bytes_show_no_image() -> None:
    kinds = [
        media_of(data_url(b"RIFF....WAVE", mime)).kind for mime in ("audio/wav", "Image/svg+xml", "application/pdf")
    ]
    assert kinds == ["audio", "image", "file"]


def test_text_in_a_data_url_is_content_too() -> None:
    assert media_of("data:text/plain,a%20b").digest == media_of(data_url(b"a b", "text/plain")).digest


@pytest.mark.parametrize("url", ["data:image/png;base64,!!!!", "data:image/png;base64,AAAAA", "data:image/png"])
def test_a_data_url_that_cannot_be_decoded_is_known_by_its_text(url: str) -> None:
    media = media_of(url)
    assert (media.kind, media.width) == ("image", None)
    assert media.digest == hashlib.blake2b(url.encode(), digest_size=16).hexdigest()


def test_an_address_is_known_as_an_address() -> None:
    url = "https://example.com/a.png?token=1"
    media = media_of(url)
    assert (media.kind, media.size, media.width) == ("image", len(url), None)
    assert media.digest != media_of(url + "2").digest


@given(st.text(max_size=100), st.sampled_from(["", "data:", "data:image/png;base64,", "data:;base64,", "data:a,"]))
def test_no_address_makes_it_raise(text: str, start: str) -> None:
    media = media_of(start + text)
    assert len(media.digest) == 32
    assert media_of(start + text) == media


def test_lone_surrogates_do_not_make_it_raise() -> None:
    assert media_of("data:image/png,\ud800").digest == media_of("data:image/png,\ud800").digest


@pytest.mark.data
def test_recorded_images_have_the_size_that_their_list_states() -> None:
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in (data.folder() / "images" / "index.jsonl").read_text().splitlines()
    ]
    wrong = {}
    for row in rows:
        content = (data.folder() / "images" / row["file"]).read_bytes()
        stated = (row["width"], row["height"]) if "width" in row else None
        found = pixels(content[: 64 * 1024])
        if found != stated and not (row["broken"] and stated is None):
            wrong[row["file"]] = (found, stated)
        assert media_of(data_url(content)).digest == hashlib.blake2b(content, digest_size=16).hexdigest()
    assert rows and wrong == {}
