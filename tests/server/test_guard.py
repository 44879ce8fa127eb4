"""What a connection may cost, and how it is told that it costs too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.server.guard import Limits
from tests.server.wire import BOUND, Connect, Small, get, guarded, post

QUICK = Limits(
    head_seconds=0.2,
    body_seconds=0.2,
    body_rate=1 << 30,
    keep_alive=0.3,
    write_idle=0.2,
    linger=0.3,
    body_bytes=100_000,
)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with guarded(Small(), Limits(body_bytes=100_000)) as (connect, _):
        yield connect


async def test_a_plain_request_is_served_and_the_connection_kept(connect: Connect) -> None:
    peer = await connect()
    for number in range(3):
        await peer.send(get(f"/{number}"))
        assert (await peer.answer()).body == f"/{number}".encode()


# Time


async def test_a_head_that_stops_half_way_is_answered_408_and_closed() -> None:
    async with guarded(Small(), QUICK) as (connect, guard):
        peer = await connect()
        await peer.send(b"POST /echo HTTP/1.1\r\nHost: he")
        answer = await peer.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-should-retry"] == "true"
        assert await peer.gone()
        assert guard.refused["request_timeout"] == 1


async def test_a_head_that_trickles_has_one_deadline_for_all_of_it() -> None:
    async with guarded(Small(), QUICK) as (connect, _):
        peer = await connect()

        for byte in b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 500:
            peer.writer.write(bytes([byte]))
            if not await peer.quiet(0.02):
                break
        assert (await peer.answer()).status == 408


async def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    async with guarded(Small(), QUICK) as (connect, guard):
        assert await (await connect()).gone()
        assert guard.refused["silent"] == 1


async def test_a_kept_connection_may_idle_longer_and_is_then_closed_without_a_word() -> None:
    limits = Limits(head_seconds=0.04, keep_alive=0.4)
    async with guarded(Small(), limits) as (connect, guard):
        peer = await connect()
        await peer.send(get("/"))
        await peer.answer()
        began = asyncio.get_running_loop().time()
        assert await peer.gone()
        assert asyncio.get_running_loop().time() - began > 0.3
        assert guard.refused == {"idle": 1}


async def test_the_head_after_an_idle_time_has_its_own_deadline() -> None:
    async with guarded(Small(), QUICK) as (connect, _):
        peer = await connect()
        await peer.send(get("/"))
        await peer.answer()
        await peer.send(b"GET / HT")
        assert (await peer.answer()).status == 408


async def test_a_body_that_stops_half_way_is_answered_408_and_the_application_sees_the_client_gone() -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, _):
        peer = await connect()
        await peer.send(post("/echo", b"{}")[:-1])
        answer = await peer.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert await peer.gone()
        async with asyncio.timeout(BOUND):
            await app.left.wait()


async def test_a_slow_but_steady_upload_outlives_the_body_deadline() -> None:
    limits = Limits(body_seconds=0.04, body_rate=1000, body_bytes=1 << 20)
    async with guarded(Small(), limits) as (connect, _):
        peer = await connect()
        head = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 3000\r\n\r\n"
        await peer.send(head + b"1" * 1000)
        for _ in range(4):
            assert await peer.quiet(0.1)
            await peer.send(b"1" * 500)
        assert (await peer.answer()).body.startswith(b"3000")


async def test_a_request_may_run_longer_than_every_deadline_for_reading() -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, _):
        peer, silent = await connect(), await connect()
        await peer.send(get("/hold"))
        assert await silent.gone()
        again = await connect()
        assert await again.gone()
        app.release.set()
        assert (await peer.answer()).body == b"held"


@pytest.mark.parametrize(
    "request_",
    [
        get("/hold") + b"GET /ne",
        post("/hold", b"1" * 90_000),
        b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["the next head waits behind an answer", "nobody reads the body", "nobody asked for the body"],
)
async def test_a_client_that_waits_for_us_is_not_late(request_: bytes) -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, guard):
        peer = await connect()
        await peer.send(request_)
        assert await peer.quiet(0.6)
        app.release.set()
        assert (await peer.answer()).body == b"held"
        assert not guard.refused


async def test_a_reader_that_stops_is_cut_and_the_application_is_told() -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, guard):
        peer = await connect()
        await peer.send(get("/flood"))
        async with asyncio.timeout(BOUND):
            await app.left.wait()
        assert guard.refused["write_idle"] == 1


async def test_a_reader_that_is_slow_but_alive_is_not_cut() -> None:
    async with guarded(Small(), Limits(write_idle=0.8)) as (connect, guard):
        peer = await connect()
        await peer.send(get("/flood"))
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 2.4:
            async with asyncio.timeout(BOUND):
                assert await peer.reader.read(4096)
            # The slowness itself: 200 KB a second, while the server's kernel buffer holds megabytes.
            await asyncio.sleep(0.02)
        assert guard.refused["write_idle"] == 0


# Size


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_head_over_its_size_is_answered_431_and_closed(connect: Connect, pieces: int) -> None:
    peer = await connect()
    request = get("/", "X-Long: " + "x" * 40_000)
    step = len(request) // pieces
    for start in range(0, len(request), step):
        await peer.send(request[start : start + step])
    answer = await peer.answer()
    assert (answer.status, answer.error["code"], answer.headers["connection"]) == (431, "headers_too_large", "close")
    assert await peer.gone()


async def test_a_head_that_never_ends_is_answered_431_long_before_its_deadline(connect: Connect) -> None:
    peer = await connect()
    await peer.send(b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 33_000)
    assert (await peer.answer()).status == 431


async def test_too_many_header_fields_are_answered_431(connect: Connect) -> None:
    peer = await connect()
    await peer.send(get("/", *(f"X-{n}: 1" for n in range(64))))
    assert (await peer.answer()).status == 431
    peer = await connect()
    await peer.send(get("/", *(f"X-{n}: 1" for n in range(63))))
    assert (await peer.answer()).status == 200


async def test_a_declared_body_over_the_limit_is_refused_before_any_of_it_is_read() -> None:
    app = Small()
    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000000\r\n\r\n")
        answer = await peer.answer()
        assert (answer.status, answer.error["code"], answer.headers["connection"]) == (
            413,
            "request_too_large",
            "close",
        )
        assert await peer.gone()
        assert app.seen == []


async def test_a_client_that_expects_to_be_asked_is_refused_without_sending_its_body(connect: Connect) -> None:
    peer = await connect()
    await peer.send(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\nExpect: 100-continue\r\n\r\n")
    assert (await peer.answer()).status == 413


async def test_a_chunked_body_is_refused_within_64_kib_of_the_limit() -> None:
    app = Small()
    async with guarded(app, Limits(body_bytes=100_000)) as (connect, _):
        peer = await connect()
        await peer.send(
            b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sent = 0
        answering = asyncio.create_task(peer.answer())
        while not answering.done() and sent < 10_000_000:
            await peer.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            sent += 4096
            await asyncio.sleep(0)
        answer = await answering
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        async with asyncio.timeout(BOUND):
            await app.left.wait()


async def test_a_client_that_sends_everything_before_it_reads_still_gets_its_413(connect: Connect) -> None:
    peer = await connect()
    await peer.send(post("/echo", b"1" * 100_001))
    assert (await peer.answer()).status == 413


async def test_an_answer_given_before_the_body_was_read_arrives_whole_although_the_connection_closes() -> None:
    async with guarded(Small()) as (connect, _):
        peer = await connect()
        await peer.send(post("/early", b"1" * 20_000_000, "Connection: close"))
        assert (await peer.answer()).body == b"/early"
        assert await peer.rest() == b""


async def test_a_body_of_tiny_chunks_passes_and_one_of_nothing_but_framing_does_not(connect: Connect) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer = await connect()
    await peer.send(head + b"1\r\n7\r\n" * 60_000 + b"0\r\n\r\n")
    assert (await peer.answer()).body.startswith(b"60000 7")
    peer = await connect()
    await peer.send(head + b"1;" + b"e" * 400_000)
    answer = await peer.answer()
    assert (answer.status, answer.error["code"]) == (400, "bad_http")


async def test_trailers_never_become_headers_of_the_request() -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        while (await receive()).get("more_body"):
            pass
        seen.append(scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.send(b"1\r\nx\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n")
        assert (await peer.answer()).status == 204
    assert [name for name, _ in seen[0]] == [b"host", b"transfer-encoding"]


async def test_connections_over_the_cap_are_told_so_and_others_live_on() -> None:
    async with guarded(Small(), Limits(connections=2)) as (connect, guard):
        first, second, third = await connect(), await connect(), await connect()
        answer = await third.answer()
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert await third.gone()
        for peer in (first, second):
            await peer.send(get("/"))
            assert (await peer.answer()).status == 200
        first.writer.close()
        await first.writer.wait_closed()
        async with asyncio.timeout(BOUND):
            while True:
                peer = await connect()
                await peer.send(get("/"))
                if (await peer.answer()).status == 200:
                    break
        assert guard.admitted == 2


async def test_a_crowd_over_the_cap_cannot_pile_up_and_passes() -> None:
    async with guarded(Small(), Limits(connections=8)) as (connect, guard):
        crowd = [await connect() for _ in range(200)]
        for peer in crowd[8:]:
            said = await peer.rest_or_reset()
            assert said == b"" or said.startswith(b"HTTP/1.1 429 ")
        assert len(guard.connections) <= 8 + 8 // 8 + 16 + 1
        for peer in crowd:
            peer.writer.transport.abort()
        async with asyncio.timeout(BOUND):
            while guard.admitted:
                await asyncio.sleep(0)
        peer = await connect()
        await peer.send(get("/"))
        assert (await peer.answer()).status == 200


# Several requests on one connection


async def test_pipelined_requests_are_answered_in_their_order(connect: Connect) -> None:
    peer = await connect()
    for turn in range(50):
        paths = [f"/{turn}-{number}" for number in range(20)]
        await peer.send(b"".join(post(path, b"{}") if n % 2 else get(path) for n, path in enumerate(paths)))
        assert [(await peer.answer()).body.decode() for _ in paths] == paths


async def test_a_bad_request_behind_a_running_one_is_refused_in_its_turn() -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, _):
        peer = await connect()
        await peer.send(get("/hold") + get("/next") + b"GET http://x/ HTTP/1.1\r\nHost: h\r\n\r\n" + get("/never"))
        async with asyncio.timeout(BOUND):
            await app.arrived.wait()
        app.release.set()
        assert [(await peer.answer()).body for _ in range(2)] == [b"held", b"/next"]
        assert (await peer.answer()).error["code"] == "bad_http"
        assert await peer.gone()
        assert app.seen == ["/hold", "/next"]


async def test_a_body_over_the_limit_behind_a_running_request_is_refused_in_its_turn() -> None:
    app = Small()
    async with guarded(app, QUICK) as (connect, _):
        peer = await connect()
        head = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(get("/hold") + head + b"20000\r\n" + b"x" * 131_072 + b"\r\n0\r\n\r\n")
        async with asyncio.timeout(BOUND):
            await app.arrived.wait()
        app.release.set()
        assert (await peer.answer()).body == b"held"
        assert (await peer.answer()).status == 413
        assert await peer.gone()
        assert app.seen == ["/hold"]


async def test_a_flood_of_pipelined_requests_is_bounded() -> None:
    app = Small()
    async with guarded(app, Limits(pipelined=8)) as (connect, _):
        peer = await connect()
        await peer.send(get("/hold") + get("/") * 500)
        async with asyncio.timeout(BOUND):
            await app.arrived.wait()
        app.release.set()
        answers = [await peer.answer() for _ in range(10)]
        assert [answer.status for answer in answers] == [200] * 9 + [429]
        assert await peer.gone()


async def test_when_the_client_leaves_every_request_it_has_running_is_told() -> None:
    app = Small()
    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(get("/flood") + get("/next"))
        async with asyncio.timeout(BOUND):
            assert await peer.reader.read(1)
        peer.writer.transport.abort()
        async with asyncio.timeout(BOUND):
            await app.left.wait()


async def test_a_connection_is_kept_after_an_error_of_a_route() -> None:
    async with guarded(Small(limit=10)) as (connect, _):
        peer = await connect()
        for body, status in ((b"{}", 200), (b"1" * 11, 413), (b"1" * 90_000, 413), (b"{}", 200)):
            await peer.send(post("/echo", body))
            assert (await peer.answer()).status == status


async def test_a_half_close_is_a_disconnect() -> None:
    app = Small()
    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(get("/flood"))
        async with asyncio.timeout(BOUND):
            assert await peer.reader.read(1)
        peer.writer.write_eof()
        async with asyncio.timeout(BOUND):
            await app.left.wait()


@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_an_upgrade_that_is_not_offered_is_ignored_and_the_request_served(connect: Connect, body: bytes) -> None:
    peer = await connect()
    await peer.send(post("/path", body, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: A"))
    answer = await peer.answer()
    assert (answer.body, answer.headers["connection"]) == (b"/path", "close")
    assert await peer.gone()


async def test_expect_100_continue_is_asked_for_and_then_served(connect: Connect) -> None:
    peer = await connect()
    head, _, body = post("/echo", b'{"a":1}', "Expect: 100-continue").partition(b"\r\n\r\n")
    await peer.send(head + b"\r\n\r\n")
    assert (await peer.answer()).status == 100
    await peer.send(body)
    assert (await peer.answer()).body == b'7 {"a":1}'


# Bugs of ours


async def test_a_bug_is_a_json_500_without_its_text_and_the_connection_lives(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await connect()
    await peer.send(get("/bug"))
    answer = await peer.answer()
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (500, "internal_error", "false")
    await peer.send(get("/"))
    assert (await peer.answer()).status == 200
    assert "ZeroDivisionError at wire.py" in caplog.text
    assert "a secret" not in caplog.text


async def test_a_bug_in_the_middle_of_an_answer_cuts_it(connect: Connect) -> None:
    peer = await connect()
    await peer.send(get("/late-bug"))
    said = await peer.rest()
    assert said.endswith(b"4\r\nhalf\r\n")
    assert b"0\r\n\r\n" not in said
