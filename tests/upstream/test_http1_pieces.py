"""A stream's pieces go to their reader as they come, not by way of his task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.upstream.test_http1 import Call
from tests.upstream.test_http1 import loop as loop

BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


def test_a_piece_is_taken_as_it_comes_without_a_turn_of_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(BEGUN)
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return piece == b"b"

    async def read() -> None:
        pouring = asyncio.create_task(call.answer.pour(take))
        await asyncio.sleep(0)
        call.feed(b"a")
        assert taken == [b"a"]
        call.feed(b"b", b"c")
        assert taken == [b"a", b"b"], "he has enough for now"
        assert not await pouring
        call.feed(b"d")
        assert taken == [b"a", b"b"]
        pouring = asyncio.create_task(call.answer.pour(take))
        await asyncio.sleep(0)
        call.feed(b"efghi")
        assert await pouring
        assert b"".join(taken) == b"abcdefghi"

    call.run(read())


def test_a_reader_that_fails_hears_of_it_and_the_connection_is_closed(loop: asyncio.AbstractEventLoop) -> None:
    for waiting in (True, False):
        call = Call(loop)
        call.feed(BEGUN)

        def take(piece: bytes) -> bool:
            raise LookupError(piece)

        async def read(call: Call = call, take: Callable[[bytes], bool] = take, waiting: bool = waiting) -> None:
            if not waiting:
                call.feed(b"a")
            pouring = asyncio.create_task(call.answer.pour(take))
            await asyncio.sleep(0)
            call.feed(b"b")
            await pouring

        with pytest.raises(LookupError, match=r"[ab]"):
            call.run(read())
        assert call.wire.closed and call.owner.freed_count == 1


def test_a_reader_that_was_cancelled_is_given_nothing_more(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(BEGUN)
    taken: list[bytes] = []

    async def read() -> None:
        pouring = asyncio.create_task(call.answer.pour(lambda piece: bool(taken.append(piece))))  # type: ignore[func-returns-value]
        await asyncio.sleep(0)
        pouring.cancel()
        call.feed(b"a")
        with pytest.raises(asyncio.CancelledError):
            await pouring

    call.run(read())
    assert taken == [] and call.wire.closed
