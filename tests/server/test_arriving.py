"""A large body comes in whole and unchanged, whatever its pieces; around it a connection is what it always was."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from proxy.server.arriving import LEAST
from proxy.server.cycle import Cycle
from proxy.server.limits import Limits
from tests.server.wire import BOUND, Small, guarded, post

SIZE = 40 * LEAST


def content(size: int = SIZE, seed: int = 1) -> bytes:
    """Bytes of which no two pieces are alike."""
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, number)).digest() for number in range(size // 32 + 1))
    return block[:size]


class Received:
    """Answers with the digest of each body; keeps the messages that it was told in, by size."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            parts.append(message["body"])
            more = message["more_body"]
        self.told.append(list(map(len, parts)))
        said = hashlib.sha256(b"".join(parts)).hexdigest().encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
        await send({"type": "http.response.body", "body": said})


def digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


async def test_a_large_body_is_given_to_the_application_in_one_piece() -> None:
    app = Received()
    body = content()
    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(post("/", body))
        assert (await peer.answer()).body == digest(body)
    assert app.told == [[SIZE]]


@pytest.mark.parametrize("piece", [LEAST // 3, LEAST, 17 * LEAST + 1])
async def test_the_body_is_the_same_in_whatever_pieces_it_is_sent(piece: int) -> None:
    app = Received()
    bodies = [content(seed=seed) for seed in range(2)]
    async with guarded(app) as (connect, _):
        peer = await connect()
        for body in bodies:
            sent = post("/", body)
            for at in range(0, len(sent), piece):
                await peer.send(sent[at : at + piece])
                await asyncio.sleep(0)
            assert (await peer.answer()).body == digest(body)


async def test_requests_behind_a_large_one_are_read_by_the_next_turn_of_the_parser() -> None:
    app = Received()
    bodies = [content(), b"{}", content(seed=2), content(LEAST // 2, seed=3)]
    async with guarded(app) as (connect, _):
        peer = await connect()
        sending = asyncio.create_task(peer.send(b"".join(post("/", body) for body in bodies)))
        for body in bodies:
            assert (await peer.answer()).body == digest(body)
        await sending
    assert app.told == [[len(body)] for body in bodies]


async def test_a_chunked_body_comes_as_before() -> None:
    app = Received()
    body = content()
    async with guarded(app) as (connect, _):
        peer = await connect()
        chunks = b"".join(b"%x\r\n%b\r\n" % (LEAST, body[at : at + LEAST]) for at in range(0, SIZE, LEAST))
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert (await peer.answer()).body == digest(body)


async def test_a_large_body_that_stops_half_way_is_answered_408_and_the_connection_ends() -> None:
    app = Received()
    limits = Limits(body_seconds=0.05, body_rate=1 << 30, linger=0.5)
    async with guarded(app, limits) as (connect, guard):
        peer = await connect()
        sent = post("/", content())
        await peer.send(sent[: SIZE // 2])
        answer = await peer.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        async with asyncio.timeout(BOUND):
            await app.left.wait()
        # The client sends on before it reads: its answer must not be lost to a reset.
        await peer.send(sent[SIZE // 2 :])
        assert await peer.rest() == b""
        async with asyncio.timeout(BOUND):
            while guard.connections:
                await asyncio.sleep(0)
        assert guard.refused == {"request_timeout": 1}


async def test_a_client_that_leaves_in_the_middle_is_gone_for_the_application() -> None:
    app = Received()
    async with guarded(app) as (connect, guard):
        peer = await connect()
        await peer.send(post("/", content())[: SIZE // 2])
        peer.writer.transport.abort()
        async with asyncio.timeout(BOUND):
            await app.left.wait()
            while guard.connections:
                await asyncio.sleep(0)


async def test_nothing_is_taken_for_a_body_that_nobody_asked_for() -> None:
    asked = asyncio.Event()
    held: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycle: Cycle = receive.__self__
        await asked.wait()
        held.append(len(cycle.body))
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
        await send({"type": "http.response.body", "body": digest(message["body"])})

    body = content(20 * 1024 * 1024)
    async with guarded(app) as (connect, _):
        peer = await connect()
        sending = asyncio.create_task(peer.send(post("/", body)))
        assert await peer.quiet(0.2)
        assert not sending.done()
        asked.set()
        await sending
        assert (await peer.answer()).body == digest(body)
    assert held[0] < 1024 * 1024


async def test_memory_is_taken_for_what_came_and_not_for_what_was_declared() -> None:
    app = Received()
    declared = 60 * 1024 * 1024
    async with guarded(app) as (connect, guard):
        peer = await connect()
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % declared
        await peer.send(head + content(1000))
        async with asyncio.timeout(BOUND):
            while not (arriving := [each.arriving for each in guard.connections if each.arriving is not None]):
                await asyncio.sleep(0)
        assert len(arriving[0].get_buffer(-1)) <= 2 * 1024 * 1024


async def test_a_body_declared_over_a_routes_limit_is_refused_at_once_and_the_connection_kept() -> None:
    async with guarded(Small(limit=LEAST)) as (connect, _):
        peer = await connect()
        body = b"1" * (SIZE + 1)
        sent = post("/echo", body)
        await peer.send(sent[:1000])
        assert (await peer.answer()).status == 413
        await peer.send(sent[1000:])
        await peer.send(post("/echo", b"{}"))
        assert (await peer.answer()).status == 200
