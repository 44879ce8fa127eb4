"""Connections over real sockets: which are kept, which are never used again, and that none is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from proxy.core.errors import InvalidReply, TimedOut, Unreachable
from proxy.upstream import Request
from proxy.upstream.compatible import CompatibleUpstream
from proxy.upstream.http1 import Connection
from proxy.upstream.pool import Pool
from tests.fakes import BOUND, Script, SeenRequest, chat_chunks
from tests.upstream.calling import (
    CALL,
    LONG,
    SHORT,
    answer,
    cancelled,
    client,
    closed_port,
    deadlines,
    pair,
    pieces,
    raw_server,
    streamed,
    whole,
)

GET = Request(path="/models", body=b"", method="GET")


async def test_a_connection_that_was_closed_while_idle_is_not_used() -> None:
    async def leave_after(request: SeenRequest, reply: Script) -> None:
        await answer(request, reply)
        await reply.close()

    async with pair(leave_after) as (up, upstream):
        for n in range(1, 4):
            await whole(upstream)
            await up.idle(connections=0)
            assert (up.connections, len(up.ledger)) == (n, n)


async def test_a_connection_that_speaks_while_idle_is_not_used() -> None:
    async def talk_on(request: SeenRequest, reply: Script) -> None:
        await answer(request, reply)
        if len(up.ledger) == 1:
            await reply.hang(read)
            await reply.json(200, b'{"stolen": true}')

    read = asyncio.Event()
    async with pair(talk_on) as (up, upstream):
        await whole(upstream)
        read.set()
        await up.idle(connections=0)
        assert b"stolen" not in await whole(upstream)
        assert up.connections == 2


async def test_an_answer_that_comes_before_the_question_is_nobodys() -> None:
    async def speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        spoken.set()
        await reader.read()

    spoken = asyncio.Event()
    async with raw_server(speak_first) as address:
        host, _, port = address.removesuffix("/v1").partition(":")
        pool = Pool(host, int(port), tls=None, limit=1, seconds=LONG)
        with suppress(ConnectionError):
            connection = await pool.new(pool.now() + LONG)
            await spoken.wait()
            async with asyncio.timeout(BOUND):
                while connection.usable:
                    await asyncio.sleep(0)
            pool.freed()
        assert (pool.in_use, pool.take()) == (0, None)
        await pool.close()


async def test_a_connection_grows_old() -> None:
    async def impatient(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, b"{}", {"keep-alive": f"timeout={request.json['keep']}"})

    async with pair(impatient) as (up, upstream):
        # Less than our margin: closed at once. A second more: kept for that second.
        await whole(upstream, Request(path="/x", body=b'{"keep": 1}'))
        await whole(upstream, Request(path="/x", body=b'{"keep": 2}'))
        await whole(upstream, Request(path="/x", body=b'{"keep": 2}'))
        assert up.connections == 2
        await up.idle(connections=0)
        await whole(upstream, Request(path="/x", body=b'{"keep": 2}'))
        assert up.connections == 3


async def test_the_connection_used_last_is_used_next() -> None:
    async with pair(answer) as (up, _):
        pool = Pool("127.0.0.1", int(up.url.rpartition(":")[2].removesuffix("/v1")), tls=None, limit=2, seconds=LONG)
        one, other = [await pool.new(pool.now() + LONG) for _ in range(2)]
        assert (pool.full, pool.in_use) == (True, 2)
        for connection in (one, other):
            pool.rest(connection, 30)
        assert (pool.take(), pool.take(), pool.take()) == (other, one, None)
        await pool.close()


async def test_a_connection_that_is_dead_on_arrival_was_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "usable", property(lambda _: False))
    async with pair(answer) as (up, upstream):
        with pytest.raises(Unreachable) as caught:
            await whole(upstream)
        assert (caught.value.sent, upstream.in_flight, up.ledger) == (False, 0, [])


async def test_a_listing_is_asked_for_again_where_a_kept_connection_was_closed_and_a_post_is_not() -> None:
    async def forget(request: SeenRequest, reply: Script) -> None:
        await (reply.reset() if len(up.ledger) == 2 else answer(request, reply))

    for request, calls in ((GET, 3), (CALL, 2)):
        async with pair(forget) as (up, upstream):
            await whole(upstream, request)
            if request is GET:
                assert b"Hello" in await whole(upstream, request)
            else:
                with pytest.raises(Unreachable):
                    await whole(upstream, request)
            assert len(up.ledger) == calls


async def test_what_is_asked_again_goes_over_a_new_connection() -> None:
    async def forget(request: SeenRequest, reply: Script) -> None:
        if len(up.ledger) <= 2:
            await up.arrived(2)
        await (reply.reset() if len(up.ledger) == 3 else answer(request, reply))

    async with pair(forget) as (up, upstream):
        await asyncio.gather(whole(upstream, GET), whole(upstream, GET))
        assert up.connections == 2
        assert b"Hello" in await whole(upstream, GET)
        assert (up.connections, len(up.ledger)) == (3, 4)


async def test_a_listing_is_asked_for_twice_at_most() -> None:
    async def forget(request: SeenRequest, reply: Script) -> None:
        await (answer(request, reply) if len(up.ledger) == 1 else reply.reset())

    async with pair(forget) as (up, upstream):
        await whole(upstream, GET)
        with pytest.raises(Unreachable) as caught:
            await whole(upstream, GET)
        assert (caught.value.sent, len(up.ledger)) == (True, 3)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_head_that_breaks_off_is_no_answer(reset: bool) -> None:
    async def break_off(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\ncontent-type: te")
        await (reply.reset() if reset else reply.close())

    async with pair(break_off) as (up, upstream):
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
        assert caught.value.sent
        await up.idle(connections=0)


async def test_what_arrived_before_a_stream_broke_is_given_on() -> None:
    async def break_off(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        for n in range(3):
            await reply.event({"n": n})
        await reply.close()

    async with pair(break_off) as (up, upstream):
        response = await upstream.send(CALL)
        await up.idle(connections=0)
        got = b""
        with pytest.raises(InvalidReply):
            async for piece in pieces(response):
                got += piece
        assert got == b'data: {"n":0}\n\ndata: {"n":1}\n\ndata: {"n":2}\n\n'


@pytest.mark.parametrize("endless", [b"a: b\r\n", b"b" * 64], ids=["lines", "one line"])
async def test_an_endless_head_is_cut(endless: bytes) -> None:
    async def talk(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nx: ")
        while not reply.entry.gone.is_set():
            await reply.raw(endless * 64)

    async with pair(talk) as (up, upstream):
        with pytest.raises(InvalidReply):
            await upstream.send(CALL)
        await up.idle(connections=0)


async def test_an_early_answer_to_a_request_still_being_written_spends_the_connection() -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Slow down\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await left.wait()

    async with raw_server(serve) as address, client(f"http://{address}") as upstream:
        response = await upstream.send(Request(path="/x", body=b"x" * 32_000_000))
        assert (response.status, await response.read()) == (429, b"{}")
        await response.close()
        assert upstream.in_flight == 0
        left.set()


async def test_a_large_request_reaches_a_slow_reader_whole() -> None:
    body = bytes(range(256)) * 40_000
    seen = bytearray()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while len(seen) < len(body):
            seen.extend(await reader.read(50_000))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await reader.read()

    async with raw_server(slowly) as address, client(f"http://{address}") as upstream:
        assert await whole(upstream, Request(path="/x", body=body)) == b"{}"
        await upstream.close()
    assert seen == body


async def test_a_stream_that_is_left_gives_its_connection_back_when_it_ends() -> None:
    async def late_end(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event(b"[DONE]")
        await reply.hang(go)
        await reply.end()

    go = asyncio.Event()
    async with pair(late_end) as (up, upstream):
        response = await upstream.send(CALL)
        await anext(pieces(response))
        response.leave(LONG)
        assert upstream.in_flight == 1
        go.set()
        async with asyncio.timeout(BOUND):
            while upstream.in_flight:
                await asyncio.sleep(0)
        await streamed(upstream)
        assert up.connections == 1


async def test_two_hundred_calls_at_once_are_kept_apart() -> None:
    async def echo(request: SeenRequest, reply: Script) -> None:
        if request.stream:
            await reply.sse([{"n": request.model}] * 20)
        else:
            await reply.json(200, {"n": request.model})

    async def ask(upstream: CompatibleUpstream, n: int) -> None:
        stream = b"true" if n % 2 else b"false"
        request = Request(path="/x", body=b'{"model":"m%d","stream":%b}' % (n, stream))
        if n % 2:
            got = b"".join(await streamed(upstream, request))
            assert got.count(b'"m%d"' % n) == 20 and got.count(b'"n"') == 20
        else:
            assert await whole(upstream, request) == b'{"n": "m%d"}' % n

    async with pair(echo) as (up, upstream):
        for _ in range(3):
            await asyncio.gather(*(ask(upstream, n) for n in range(200)))
            assert upstream.in_flight == 0
        assert up.connections <= 200


async def test_calls_over_the_bound_wait_their_turn_and_none_is_lost() -> None:
    async with pair(answer, max_connections=3) as (up, upstream):
        tasks = [asyncio.create_task(whole(upstream)) for _ in range(60)]
        for task in tasks[30:40]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, bytes) for result in done) == 50
        assert (up.connections <= 3, upstream.in_flight) == (True, 0)


async def test_who_is_cancelled_with_the_slot_in_its_hands_passes_it_on() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await (reply.hang(go) if len(up.ledger) == 1 else answer(request, reply))
        if len(up.ledger) == 1:
            await answer(request, reply)

    go = asyncio.Event()
    async with pair(hang, max_connections=1) as (up, upstream):
        first = asyncio.create_task(whole(upstream))
        await up.arrived()
        second, third = (asyncio.create_task(whole(upstream)) for _ in range(2))
        first.add_done_callback(lambda _: second.cancel())
        go.set()
        await first
        assert b"Hello" in await third
        await cancelled(second)
        assert upstream.in_flight == 0


async def test_a_stream_that_is_cancelled_closes_its_connection_even_if_nobody_calls_close() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event({"n": 1})
        await reply.hang()

    async with pair(stall) as (up, upstream):
        response = await upstream.send(CALL)
        reads = asyncio.Event()

        async def read() -> None:
            async for _ in pieces(response):
                reads.set()

        task = asyncio.create_task(read())
        await reads.wait()
        await cancelled(task)
        await asyncio.wait_for(up.ledger[0].gone.wait(), 1.0)
        assert upstream.in_flight == 0


async def test_an_unanswered_connect_that_is_cancelled_frees_its_slot_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):  # the queue is full
            async with client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", max_connections=1) as upstream:
                task = asyncio.create_task(whole(upstream))
                async with asyncio.timeout(BOUND):
                    while not upstream.in_flight:
                        await asyncio.sleep(0)
                await cancelled(task)
                assert upstream.in_flight == 0


async def test_a_call_that_is_cancelled_as_its_connection_is_made_leaves_nothing_behind() -> None:
    tasks: list[asyncio.Task[bytes]] = []

    class Cancelling(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            tasks[-1].cancel()

    async with pair(answer) as (up, upstream):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("proxy.upstream.pool.Connection", Cancelling)
            for _ in range(3):
                tasks.append(asyncio.create_task(whole(upstream)))
                await asyncio.wait(tasks, timeout=BOUND)
        assert all(task.cancelled() for task in tasks)
        tasks.clear()  # what cancelled them holds the frames, and these what was being made
        await up.idle(connections=0)
        gc.collect()
        left = [made for made in gc.get_objects() if type(made) is Cancelling]
        assert (left, upstream.in_flight, up.ledger) == ([], 0, [])


async def test_closing_ends_who_is_still_connecting() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):
            async with client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1") as upstream:
                task = asyncio.create_task(whole(upstream))
                async with asyncio.timeout(BOUND):
                    while not upstream.in_flight:
                        await asyncio.sleep(0)
                await upstream.close()
                with pytest.raises(Unreachable, match="shut down") as caught:
                    await asyncio.wait_for(task, BOUND)
                assert not caught.value.sent


async def test_a_first_byte_deadline_below_the_connect_deadline_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            async with client(url, limits=deadlines(first_byte=SHORT)) as upstream:
                with pytest.raises(TimedOut, match=r"begin to answer within 0\.2 s") as caught:
                    await upstream.send(CALL)
                assert not caught.value.sent


async def test_no_socket_is_left_behind() -> None:
    async def any_end(request: SeenRequest, reply: Script) -> None:
        match request.model:
            case "reset":
                await reply.reset()
            case "close":
                await reply.raw(b"HTTP/1.1 200 OK\r\ncontent-le")
                await reply.close()
            case "babble":
                await reply.raw(b"babble\r\n\r\n")
            case "hang":
                await reply.hang()
            case _:
                await reply.sse(chat_chunks("Hello"))

    before = _sockets()
    if before is None:
        pytest.skip("only where /proc lists a process's open files")
    async with pair(any_end) as (_, upstream), client(f"http://127.0.0.1:{closed_port()}/v1") as nobody:
        for _ in range(5):
            models = ["reset", "close", "babble", "hang", "hang", "good", "good"]
            calls = [Request(path="/x", body=b'{"model":"%b"}' % model.encode()) for model in models]
            tasks = [asyncio.create_task(streamed(upstream, call)) for call in calls]
            tasks.append(asyncio.create_task(streamed(nobody)))
            for task in tasks[3:5]:
                asyncio.get_running_loop().call_later(0.05, task.cancel)
            await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(BOUND):
        while _sockets() != before:
            await asyncio.sleep(0.01)  # the loop closes them in its own time


def _sockets() -> int | None:
    """Sockets that this process holds; None where the system does not tell."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return None
    kinds = []
    for name in os.listdir(folder):
        with suppress(OSError):
            kinds.append(os.readlink(folder / name))
    return sum(kind.startswith("socket:") for kind in kinds)


SCENARIOS: list[Callable[[], Coroutine[object, object, None]]] = [
    test_a_connection_that_was_closed_while_idle_is_not_used,
    test_a_connection_that_speaks_while_idle_is_not_used,
    test_an_answer_that_comes_before_the_question_is_nobodys,
    test_a_listing_is_asked_for_again_where_a_kept_connection_was_closed_and_a_post_is_not,
    test_what_arrived_before_a_stream_broke_is_given_on,
    test_an_early_answer_to_a_request_still_being_written_spends_the_connection,
    test_a_large_request_reaches_a_slow_reader_whole,
    test_a_stream_that_is_left_gives_its_connection_back_when_it_ends,
    test_two_hundred_calls_at_once_are_kept_apart,
    test_calls_over_the_bound_wait_their_turn_and_none_is_lost,
    test_who_is_cancelled_with_the_slot_in_its_hands_passes_it_on,
    test_an_unanswered_connect_that_is_cancelled_frees_its_slot_at_once,
    test_a_call_that_is_cancelled_as_its_connection_is_made_leaves_nothing_behind,
    test_closing_ends_who_is_still_connecting,
    test_no_socket_is_left_behind,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    """What a reset, an abort or a flush does is the loop's own affair, and production runs on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
