"""From ASGI messages to the bytes of a JSON document, or to the right refusal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import ClientLeft, Malformed, TooLarge, WeirgateError, WrongMedia
from proxy.server.body import content_coding, read_body

JSON = [(b"content-type", b"application/json")]
ZSTD = [*JSON, (b"content-encoding", b"zstd")]


def receiving(*pieces: bytes, leaves: bool = False) -> Any:
    last = len(pieces) - 1
    messages = [
        {"type": "http.request", "body": piece, "more_body": leaves or n < last} for n, piece in enumerate(pieces)
    ]
    waiting = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(waiting)

    return receive


async def test_one_message_is_passed_on_as_it_is() -> None:
    body = b'{"a":1}'
    assert await read_body(receiving(body), JSON, limit=100) is body


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
def test_pieces_are_joined_in_order(pieces: list[bytes]) -> None:
    assert asyncio.run(read_body(receiving(*pieces), JSON, limit=200)) == b"".join(pieces)


@pytest.mark.parametrize("pieces", [(b"x" * 11,), (b"x" * 10, b"y"), (b"x" * 6, b"y" * 6, b"z" * 10**6)])
async def test_a_body_over_the_limit_is_too_large_and_one_at_the_limit_is_not(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(TooLarge):
        await read_body(receiving(*pieces), JSON, limit=10)
    assert len(await read_body(receiving(b"x" * 10), JSON, limit=10)) == 10


async def test_a_client_that_leaves_is_not_an_error_of_its_body() -> None:
    for receive in (receiving(), receiving(b"{", leaves=True)):
        with pytest.raises(ClientLeft):
            await read_body(receive, JSON, limit=10)


@pytest.mark.parametrize(
    "media",
    [
        b"application/json",
        b"Application/JSON; charset=UTF-8",
        b'application/json;charset="utf-8"',
        b"application/vnd.api+json",
        b"application/json; charset=us-ascii",
        b"application/json; profile=x",
    ],
)
def test_json_in_utf8_is_taken(media: bytes) -> None:
    assert content_coding([(b"content-type", media)]) == b""


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [(b"content-type", b"text/json+json")],
        [(b"content-type", b"application/jsonl")],
        [(b"content-type", b"application/json; charset=utf-16")],
        [(b"content-type", b"application/json; charset=latin-1")],
        [(b"content-type", b"text/plain; a=application/json")],
        [*JSON, *JSON],
        [*JSON, (b"content-encoding", b"gzip")],
        [*JSON, (b"content-encoding", b"zstd, gzip")],
        [*JSON, (b"content-encoding", b"zstd"), (b"content-encoding", b"zstd")],
    ],
)
async def test_anything_else_is_refused_before_a_byte_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    async def receive() -> Any:
        raise AssertionError("nothing may be read")

    with pytest.raises(WrongMedia) as refusal:
        await read_body(receive, headers, limit=10)
    assert refusal.value.status == 415


@pytest.mark.parametrize("level", [1, 3, 19])
async def test_a_zstd_body_is_opened_however_it_was_cut(level: int) -> None:
    body = b'{"messages":[' + b'{"role":"user","content":"again"},' * 60_000 + b"null]}"
    packed = zstd.compress(body, level)
    assert await read_body(receiving(packed), ZSTD, limit=len(body)) == body
    pieces = [packed[start : start + 100] for start in range(0, len(packed), 100)]
    assert await read_body(receiving(*pieces), ZSTD, limit=len(body)) == body
    with pytest.raises(TooLarge):
        await read_body(receiving(packed), ZSTD, limit=len(body) - 1)


async def test_identity_is_no_coding() -> None:
    assert await read_body(receiving(b"{}"), [*JSON, (b"content-encoding", b"Identity")], limit=9) == b"{}"


async def test_a_bomb_is_stopped_at_the_limit_and_the_loop_turns_meanwhile() -> None:
    bomb = zstd.compress(bytes(64 * 1024 * 1024), 3)
    assert len(bomb) < 10_000
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with pytest.raises(TooLarge):
        await read_body(receiving(bomb), ZSTD, limit=16 * 1024 * 1024)
    counting.cancel()
    assert 14 <= turns <= 20


def test_a_window_over_8_mib_is_refused() -> None:
    wide = zstd.compress(bytes(20 << 20), options={zstd.CompressionParameter.window_log: 24})
    frame = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    unsized = frame.compress(bytes(20 << 20)) + frame.flush()
    for packed in (wide, unsized):
        with pytest.raises(Malformed):
            asyncio.run(read_body(receiving(packed), ZSTD, limit=1 << 26))


@pytest.mark.parametrize(
    "packed",
    [b"", b"{}", zstd.compress(b'{"a":1}' * 99)[:-3], zstd.compress(b"{}") + b"{}", zstd.compress(b"{}") * 2],
    ids=["empty", "not zstd", "cut", "something behind", "two frames"],
)
async def test_a_broken_frame_is_malformed(packed: bytes) -> None:
    with pytest.raises(Malformed):
        await read_body(receiving(packed), ZSTD, limit=10_000)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_opening(packed: bytes) -> None:
    for start in (b"", zstd.compress(b"x" * 50)[:9]):
        try:
            asyncio.run(read_body(receiving(start + packed), ZSTD, limit=1000))
        except WeirgateError as error:
            assert error.status in (400, 413)
