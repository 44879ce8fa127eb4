"""What a provider may do to us, byte by byte, and what we say of it (reliability.md 3.3).

Deadlines are small numbers passed in; a test that waits for one waits for the event itself. Most tests also hold that
the connection is gone from both ends.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from proxy.core.errors import InvalidReply, TimedOut, Unreachable, UpstreamError
from proxy.upstream import Request
from proxy.upstream.compatible import CompatibleUpstream
from tests.fakes import Script, SeenRequest
from tests.upstream.calling import (
    CALL,
    SHORT,
    answer,
    cancelled,
    client,
    closed_port,
    deadlines,
    either,
    pair,
    pieces,
    raw_server,
    says_nothing,
    whole,
)


async def test_a_refused_connection_was_not_sent() -> None:
    async with client(
        f"http://me:pass-canary@127.0.0.1:{closed_port()}/v1/path-canary", api_key="key-canary"
    ) as upstream:
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
    assert (caught.value.sent, caught.value.retry) == (False, True)
    says_nothing(caught.value, "pass-canary", "path-canary", "key-canary", "127.0.0.1")


async def test_an_unknown_host_was_not_sent() -> None:
    async with client("http://nowhere.invalid/v1") as upstream:
        with pytest.raises(Unreachable, match="resolved") as caught:
            await upstream.send(CALL)
    assert not caught.value.sent
    says_nothing(caught.value, "nowhere")


async def test_a_failed_tls_handshake_was_not_sent() -> None:
    async def talk_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with raw_server(talk_plainly) as address, client(f"https://{address}") as upstream:
        with pytest.raises(Unreachable, match="secure") as caught:
            await upstream.send(CALL)
    assert not caught.value.sent


async def test_a_connection_that_is_never_accepted_ends_at_the_connect_deadline() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # The queue holds one connection more than its length; what comes after is left without an answer.
        with socket.create_connection(listener.getsockname()):
            async with client(
                f"http://127.0.0.1:{listener.getsockname()[1]}/v1", limits=deadlines(connect=SHORT)
            ) as upstream:
                with pytest.raises(TimedOut, match=r"connected to within 0\.2 s") as caught:
                    await upstream.send(CALL)
    assert (caught.value.sent, caught.value.retry) == (False, True)


async def test_who_finds_every_connection_in_use_waits_no_longer_than_the_connect_deadline() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with pair(hang, limits=deadlines(connect=SHORT), max_connections=1) as (up, upstream):
        first = asyncio.create_task(upstream.send(CALL))
        await up.arrived()
        with pytest.raises(TimedOut, match="in use") as caught:
            await upstream.send(CALL)
        assert not caught.value.sent
        assert len(up.ledger) == 1
        await cancelled(first)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_closed_before_the_head_may_have_been_served(reset: bool) -> None:
    async def leave(request: SeenRequest, reply: Script) -> None:
        await (reply.reset() if reset else reply.close())

    async with pair(leave) as (up, upstream):
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, caught.value.retry) == (True, False)
        assert len(up.ledger) == 1, "a POST is never repeated"


async def test_a_kept_connection_that_turns_out_closed_is_reported_as_sent_and_not_repeated() -> None:
    async def once(request: SeenRequest, reply: Script) -> None:
        await (answer(request, reply) if len(up.ledger) == 1 else reply.reset())

    async with pair(once) as (up, upstream):
        await whole(upstream)
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, len(up.ledger), up.connections) == (True, 2, 1)


async def test_silence_ends_at_the_first_byte_deadline_and_the_provider_sees_the_close() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with pair(hang, limits=deadlines(first_byte=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"begin to answer within 0\.2 s") as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, caught.value.retry) == (True, False)
        await up.idle(connections=0)
        assert up.ledger[0].gone.is_set()


async def test_a_head_that_drips_does_not_move_the_first_byte_deadline() -> None:
    async def drip(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\n")
        while not reply.entry.gone.is_set():
            await reply.raw(b"x: y\r\n" if reply.entry.sent < 400 else b"")
            await asyncio.sleep(0)

    async with pair(drip, limits=deadlines(first_byte=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match="begin to answer"):
            await upstream.send(CALL)
        await up.idle(connections=0)


@either
async def test_silence_in_the_middle_ends_at_the_idle_deadline(
    ask: Callable[[CompatibleUpstream], Awaitable[object]],
) -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event({"n": 1})
        await reply.hang()

    async with pair(stall, limits=deadlines(idle=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"nothing for 0\.2 s"):
            await ask(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].gone.is_set()


@either
async def test_a_slow_drip_ends_at_the_total_deadline(ask: Callable[[CompatibleUpstream], Awaitable[object]]) -> None:
    async def drip(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b".")
            with suppress(TimeoutError):  # a beat between two bytes, or the client's leaving
                await asyncio.wait_for(reply.entry.gone.wait(), 0.02)

    async with pair(drip, limits=deadlines(total=0.4, idle=0.3)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"complete within 0\.4 s"):
            await ask(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].sent > 100, "the idle deadline moved with every byte"


async def test_the_total_deadline_also_holds_while_nothing_reads() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b"x" * 65536)

    async with pair(endless, limits=deadlines(total=SHORT)) as (up, upstream):
        response = await upstream.send(CALL)
        chunks = pieces(response)
        await anext(chunks)
        await up.ledger[0].gone.wait()
        with pytest.raises(TimedOut, match="complete within"):
            await anext(chunks)
        await response.close()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_slow_reader_is_not_an_idle_provider_and_does_not_hide_one(goes_on: bool) -> None:
    gate = asyncio.Event()

    async def two(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event({"n": 1})
        await reply.hang(gate)
        await reply.event({"n": 2})
        await reply.end()

    async with pair(two, limits=deadlines(idle=0.1)) as (_, upstream):
        response = await upstream.send(CALL)
        chunks = pieces(response)
        await anext(chunks)
        # Longer than the idle deadline, counted by the loop's own clock: this is the slow reader.
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, over.set)
        await over.wait()
        if goes_on:
            gate.set()
            assert [chunk async for chunk in chunks] == [b'data: {"n":2}\n\n']
        else:
            with pytest.raises(TimedOut, match=r"nothing for 0\.1 s"):
                await anext(chunks)
            gate.set()
        await response.close()


CUTS: dict[str, tuple[bytes, bool]] = {
    "RST inside a chunk": (b"transfer-encoding: chunked\r\n\r\n40\r\ndata: ", True),
    "FIN inside a chunk": (b"transfer-encoding: chunked\r\n\r\n40\r\ndata: ", False),
    "FIN between chunks": (b"transfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n", False),
    "FIN before the length": (b"content-length: 100\r\n\r\n{", False),
    "RST before the length": (b"content-length: 100\r\n\r\n{", True),
    "RST without a framing": (b"\r\n{", True),
}


@either
@pytest.mark.parametrize("cut", CUTS)
async def test_a_body_that_breaks_off_never_looks_whole(
    ask: Callable[[CompatibleUpstream], Awaitable[object]], cut: str
) -> None:
    rest, reset = CUTS[cut]
    head_seen = asyncio.Event()

    async def break_off(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\n" + rest)
        await reply.hang(head_seen)
        await (reply.reset() if reset else reply.close())

    async with pair(break_off) as (up, upstream):
        response = await upstream.send(CALL)
        reading = asyncio.create_task(_drain(ask, response))
        head_seen.set()
        with pytest.raises(InvalidReply):
            await reading
        await up.idle(connections=0)


async def _drain(ask: object, response: object) -> None:
    if ask is whole:
        await response.read()  # type: ignore[attr-defined]
    else:
        async for _ in pieces(response):  # type: ignore[arg-type]
            pass


async def test_a_body_that_only_the_end_of_the_connection_ends_is_whole() -> None:
    async def unframed(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}")
        await reply.close()

    async with pair(unframed) as (_, upstream):
        assert await whole(upstream) == b"{}"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x00\x00 not http\r\n\r\n",
        b"HTTP/1.1 two hundred OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["binary", "status", "length", "two framings", "huge header"],
)
async def test_a_head_that_is_not_http_is_an_invalid_reply(garbage: bytes) -> None:
    async def babble(request: SeenRequest, reply: Script) -> None:
        await reply.raw(garbage)
        await reply.hang()

    async with pair(babble) as (up, upstream):
        with pytest.raises(InvalidReply) as caught:
            await upstream.send(CALL)
        says_nothing(caught.value, "not http", "two hundred", "yyyy")
        await up.idle(connections=0)


@either
async def test_a_broken_chunk_size_is_an_invalid_reply(ask: Callable[[CompatibleUpstream], Awaitable[object]]) -> None:
    async def babble(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.raw(b"secret-canary\r\n")
        await reply.hang()

    async with pair(babble) as (up, upstream):
        with pytest.raises(UpstreamError) as caught:
            await ask(upstream)
        assert type(caught.value) is InvalidReply
        says_nothing(caught.value, "secret-canary")
        await up.idle(connections=0)


@either
@pytest.mark.parametrize("encoding", ["gzip", "br", "x-unknown"])
async def test_a_compressed_body_is_not_unpacked(
    ask: Callable[[CompatibleUpstream], Awaitable[object]], encoding: str
) -> None:
    async def pack(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, gzip.compress(b"0" * 1_000_000), {"content-encoding": encoding})

    async with pair(pack) as (_, upstream):
        with pytest.raises(InvalidReply, match="compressed"):
            await ask(upstream)


async def test_identity_is_no_compression() -> None:
    async def say_identity(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, b"{}", {"content-encoding": "Identity"})

    async with pair(say_identity) as (_, upstream):
        assert await whole(upstream) == b"{}"


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    async def sized(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, b"x" * int(request.json["n"]))

    async with pair(sized, reply_limit=100_000) as (_, upstream):
        assert len(await whole(upstream, Request(path="/x", body=b'{"n":100000}'))) == 100_000
        with pytest.raises(InvalidReply, match="100000 bytes"):
            await whole(upstream, Request(path="/x", body=b'{"n":100001}'))


async def test_an_endless_body_is_cut_at_the_limit_and_what_was_buffered_is_bounded() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b"x" * 65536)

    async with pair(endless, reply_limit=1_000_000) as (up, upstream):
        with pytest.raises(InvalidReply, match="larger"):
            await whole(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].sent < 32_000_000, "sockets and buffers hold a bounded part of an endless body"
