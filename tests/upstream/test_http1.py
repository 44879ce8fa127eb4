"""One connection without a socket: any answer, cut in any way, is the same answer; what spoils one is told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.errors import UpstreamError
from proxy.upstream import Deadlines
from proxy.upstream.compatible import HttpResponse
from proxy.upstream.http1 import Connection, Fault
from tests.upstream.calling import pieces

T = TypeVar("T")
LIMITS = Deadlines()
MOST = 1 << 20
OVERHEAD = 64 * 1024
"""What may come without a byte of body."""


class Wire(asyncio.Transport):
    """A transport that keeps what is done to it. `room` is how many bytes it takes before it asks to be left alone."""

    def __init__(self, room: float = float("inf")) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True
        self.waiting = 0
        self.room = room
        self.protocol: Connection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        self.waiting += len(data)
        if self.waiting > self.room and self.protocol is not None:
            self.protocol.pause_writing()

    def take_all(self) -> None:
        """The peer reads everything."""
        self.waiting = 0
        assert self.protocol is not None
        self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.room == float("inf") else self.waiting

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class Keeper:
    """An owner that keeps what it is told."""

    def __init__(self) -> None:
        self.rested: list[float] = []
        self.freed_count = 0

    def rest(self, connection: Connection, seconds: float) -> None:
        self.rested.append(seconds)

    def freed(self) -> None:
        self.freed_count += 1

    def closing(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Call:
    """One exchange over a connection of its own, on a loop that only runs while something is awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int = MOST, limits: Deadlines = LIMITS) -> None:
        self.loop = loop
        self.limits = limits
        self.owner = Keeper()
        self.wire = Wire()
        self.connection = self.wire.protocol = Connection(loop, self.owner)
        self.connection.connection_made(self.wire)
        self.answer = self.ask(most=most)

    def ask(self, body: bytes = b"", *, most: int = MOST) -> HttpResponse:
        now = self.loop.time()
        self.answer = HttpResponse(self.limits, ends=now + 3600, most=most)
        self.connection.start(self.answer, b"GET / HTTP/1.1\r\n\r\n", body, now + 600)
        return self.answer

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.wire.closed:
                self.connection.data_received(piece)

    def end(self) -> None:
        if not self.wire.closed:
            self.connection.eof_received()
        self.connection.connection_lost(None)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 5))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` in pieces; `at` are the places, taken modulo its length."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(places)]


# -- any answer, cut in any way --------------------------------------------------------------------------------------

tokens = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(lambda name: f"x-{name}")
values = st.text("abcXYZ019 ;=/\"'é,", max_size=30).map(str.strip)
bodies = st.one_of(st.binary(max_size=300), st.just(b"HTTP/1.1 200 OK\r\n\r\n"), st.just(b"0\r\n\r\n"))
interim = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: </a>\r\n\r\n", b"HTTP/1.1 102 P\r\n\r\n" * 3]
)
places = st.lists(st.integers(0, 5000), max_size=12)


def chunked(body: bytes, sizes: list[int], trailer: bytes) -> bytes:
    out = []
    at = 0
    while at < len(body):
        size = sizes[len(out) % len(sizes)]
        part = body[at : at + size]
        extension = b";note=1" if len(out) % 3 == 1 else b""
        out.append(b"%x%b\r\n%b\r\n" % (len(part), extension, part))
        at += size
    return b"".join(out) + b"0\r\n" + trailer + b"\r\n"


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, int, dict[str, str], bytes, bool]:
    """Bytes, and what they say: status, headers, body, whether the connection can be used again."""
    status = draw(st.sampled_from([200, 201, 400, 404, 429, 500, 503]))
    body = draw(bodies)
    headers = draw(st.dictionaries(tokens, values, max_size=5))
    framing = draw(st.sampled_from(["length", "chunked", "end"]))
    closes = draw(st.sampled_from(["", "close"]))
    if framing == "length":
        headers["content-length"] = str(len(body))
        tail = body
    elif framing == "chunked":
        headers["transfer-encoding"] = "chunked"
        trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n", b"x-a: 1\r\nx-b: 2\r\n"]))
        tail = chunked(body, draw(st.lists(st.integers(1, 90), min_size=1, max_size=4)), trailer)
    else:
        tail = body
    if closes:
        headers["connection"] = closes
    lines = "".join(f"{name.title()}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Text\r\n{lines}\r\n".encode("latin-1")
    return draw(interim) + head + tail, status, headers, body, not closes and framing != "end"


@given(answers(), places, st.booleans())
def test_an_answer_is_the_same_however_it_is_cut(
    answer: tuple[bytes, int, dict[str, str], bytes, bool], at: list[int], stream: bool
) -> None:
    data, status, headers, body, again = answer
    with asyncio.Runner() as runner:
        call = Call(runner.get_loop())
        call.feed(*cut(data, at))
        assert bool(call.owner.rested) == again
        call.end()
        assert call.run(taken(call.answer, stream)) == body
        assert (call.answer.status, call.answer.headers) == (status, headers)
        assert (call.owner.freed_count, len(call.owner.rested)) == ((0, 1) if again else (1, 0))


async def taken(answer: HttpResponse, stream: bool) -> bytes:
    if not stream:
        return await answer.read()
    taken = [piece async for piece in pieces(answer)]
    assert all(0 < len(piece) <= 32 * 1024 for piece in taken)
    return b"".join(taken)


@given(answers(), places, st.integers(0, 5000), st.binary(min_size=1, max_size=3))
@example(
    (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", 200, {}, b"", True), [], 19, b"\r\ntransfer-encoding: chunked"
)
def test_a_damaged_answer_is_the_same_however_it_is_cut(
    answer: tuple[bytes, int, dict[str, str], bytes, bool], at: list[int], where: int, damage: bytes
) -> None:
    data = answer[0]
    where %= len(data)
    data = data[:where] + damage + data[where + len(damage) :]
    with asyncio.Runner() as runner:
        outcomes = []
        for parts in ([data], cut(data, at), [data[n : n + 1] for n in range(len(data))]):
            call = Call(runner.get_loop())
            call.feed(*parts)
            call.end()
            outcomes.append((call.answer.status, call.answer.fields, call.answer.fault, b"".join(call.answer.parts)))
            assert call.answer.whole == (call.answer.fault is None)
        assert outcomes[0] == outcomes[1] == outcomes[2]


@given(answers(), st.integers(0, 5000))
def test_an_answer_that_breaks_off_is_never_whole(
    answer: tuple[bytes, int, dict[str, str], bytes, bool], where: int
) -> None:
    data, _, headers, _, _ = answer
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return  # the end of the connection is its end
    with asyncio.Runner() as runner:
        call = Call(runner.get_loop())
        call.feed(data[: where % len(data)])
        call.end()
        assert (call.answer.whole, call.answer.fault, call.owner.rested) == (False, Fault.ENDED, [])


@given(st.binary(max_size=200), places)
def test_no_bytes_of_a_provider_raise_anything_else_than_our_errors(data: bytes, at: list[int]) -> None:
    with asyncio.Runner() as runner:
        call = Call(runner.get_loop())
        call.feed(*cut(data, at))
        call.end()
        try:
            call.run(call.answer.read())
        except UpstreamError:
            pass
        assert call.owner.freed_count + len(call.owner.rested) == 1


# -- what a connection is worth afterwards ---------------------------------------------------------------------------

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\n{}"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nconnection: Keep-Alive, Close\r\n\r\n{}",
    ],
)
def test_a_connection_that_its_provider_will_close_is_not_kept(loop: asyncio.AbstractEventLoop, head: bytes) -> None:
    call = Call(loop)
    call.feed(head)
    assert (call.run(call.answer.read()), call.owner.rested, call.wire.closed) == (b"{}", [], True)


def test_http_1_0_with_keep_alive_is_kept(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}")
    assert (len(call.owner.rested), call.wire.closed) == (1, False)


@pytest.mark.parametrize("extra", [WHOLE % b"", b"HTTP", b"\0", b"{}"])
@pytest.mark.parametrize("together", [True, False])
def test_bytes_behind_an_answer_do_not_harm_it_and_end_the_connection(
    loop: asyncio.AbstractEventLoop, extra: bytes, together: bool
) -> None:
    call = Call(loop)
    call.feed(*([WHOLE % b"" + extra] if together else [WHOLE % b"", extra]))
    assert (call.run(call.answer.read()), call.wire.closed, call.connection.usable) == (b"{}", True, False)


def test_bytes_before_the_first_request_end_the_connection(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire()
    connection = Connection(loop, Keeper())
    connection.connection_made(wire)
    connection.data_received(WHOLE % b"")
    assert (wire.closed, connection.usable) == (True, False)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"", float("inf")),
        (b"Keep-Alive: timeout=5\r\n", 5),
        (b"Keep-Alive: timeout=20, max=3\r\n", 20),
        (b"Keep-Alive: max=3\r\n", float("inf")),
        (b"Keep-Alive: timeout=soon\r\n", float("inf")),
        (b"Keep-Alive: timeout=-1\r\n", float("inf")),
    ],
)
def test_how_long_a_provider_keeps_an_idle_connection_is_heard(
    loop: asyncio.AbstractEventLoop, line: bytes, seconds: float
) -> None:
    call = Call(loop)
    call.feed(WHOLE % line)
    assert call.owner.rested == [seconds]


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_whole_with_its_head(loop: asyncio.AbstractEventLoop, status: int) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 %d No\r\nContent-Length: 99\r\n\r\n" % status)
    assert (call.run(call.answer.read()), len(call.owner.rested)) == (b"", 1)


def test_a_switch_of_protocols_is_not_an_answer(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
    assert (call.answer.fault, call.wire.closed) == (Fault.GARBLED, True)


def test_repeated_headers_are_joined_and_a_hidden_compression_is_seen(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n")
    assert call.answer.headers["x-a"] == "1, 2"
    with pytest.raises(UpstreamError, match="compressed"):
        call.run(call.answer.read())


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, gzip", b"gzip"])
def test_a_compressed_transfer_is_not_unpacked(loop: asyncio.AbstractEventLoop, coding: bytes) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    with pytest.raises(UpstreamError, match="compressed"):
        call.run(call.answer.read())


# -- bounds ----------------------------------------------------------------------------------------------------------

ENDLESS = {
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "one header line": (b"HTTP/1.1 200 OK\r\na: ", b"bbbbbbbb"),
    "status line": (b"HTTP/1.1 200 ", b"OK OK OK"),
    "interim answers": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "blank lines": (b"", b"\r\n\r\n"),
    "trailers": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"a: b\r\n"),
    "a chunk's extension": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;", b"aaaaaaaa"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_is_no_body_is_bounded(loop: asyncio.AbstractEventLoop, kind: str) -> None:
    first, more = ENDLESS[kind]
    call = Call(loop)
    call.feed(first)
    fed = 0
    while not call.wire.closed and fed < 4 * OVERHEAD:
        call.feed(more * 16)
        fed += len(more) * 16
    assert call.answer.fault is Fault.GARBLED
    assert fed <= OVERHEAD + 1024


def test_a_head_over_the_bound_is_refused_in_one_piece_too(loop: asyncio.AbstractEventLoop) -> None:
    for lines in (b"a: b\r\n" * 5_000, b"a: " + b"b" * 70_000 + b"\r\n"):
        call = Call(loop)
        call.feed(b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 2\r\n\r\n{}")
        assert (call.answer.fault, call.answer.status) == (Fault.GARBLED, 0)


def test_a_large_head_that_is_allowed_is_read(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(WHOLE % (b"content-security-policy: " + b"x" * 40_000 + b"\r\n"))
    assert call.run(call.answer.read()) == b"{}"


def test_the_provider_waits_while_nobody_reads_and_goes_on_when_somebody_does(
    loop: asyncio.AbstractEventLoop,
) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 60_000)
    assert call.wire.reading
    call.feed(b"x" * 10_000)
    assert not call.wire.reading

    async def more(chunks: AsyncIterator[bytes]) -> bytes:
        return await anext(chunks)

    async def read() -> int:
        size = 0
        chunks = pieces(call.answer)
        while size < 70_000:
            size += len(await anext(chunks))
        waiting = asyncio.create_task(more(chunks))
        await asyncio.sleep(0)
        assert call.wire.reading
        call.feed(b"x" * 230_000)
        size += len(await waiting)
        return size + sum([len(piece) async for piece in chunks])

    assert call.run(read()) == 300_000


def test_a_large_piece_is_given_on_in_parts(loop: asyncio.AbstractEventLoop) -> None:
    body = bytes(range(256)) * 1000
    for size in (len(body), 3, 33_000):
        call = Call(loop)
        call.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, [size], b""))
        assert call.run(taken(call.answer, stream=True)) == body


def test_a_declared_length_over_the_bound_is_refused_before_it_comes(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop, most=1000)
    call.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n{")
    with pytest.raises(UpstreamError, match="larger than 1000 bytes"):
        call.run(call.answer.read())
    assert call.wire.closed


def test_the_idle_deadline_rests_while_nobody_waits(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop, limits=Deadlines(idle=0.05))
    call.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")

    async def read() -> list[bytes]:
        chunks = pieces(call.answer)
        loop.call_soon(call.feed, b"a")  # so that the first is waited for
        got = [await anext(chunks)]
        await asyncio.sleep(0.15)  # a slow client
        loop.call_soon(call.feed, b"bc")
        return [*got, await anext(chunks)]

    assert call.run(read()) == [b"a", b"bc"]


def test_a_large_request_is_written_as_fast_as_it_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(WHOLE % b"")
    call.wire.room, call.wire.written, call.wire.waiting = 64 * 1024, [], 0
    body = bytes(range(256)) * 16_384  # 4 MiB
    call.ask(body)
    turns = 0
    while sum(map(len, call.wire.written)) < len(body):
        assert call.wire.waiting <= (1 << 20) + 100, "no more than a slice lies in the transport"
        call.wire.take_all()
        turns += 1
    assert turns == 3
    assert b"".join(call.wire.written).removeprefix(b"GET / HTTP/1.1\r\n\r\n") == body


def test_an_answer_to_half_a_request_is_heard_and_the_connection_is_not_kept(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(WHOLE % b"")
    assert len(call.owner.rested) == 1
    call.wire.room = 64 * 1024
    answer = call.ask(b"x" * 4_000_000)
    call.feed(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
    assert (call.run(answer.read()), answer.status) == (b"{}", 413)
    assert (len(call.owner.rested), call.wire.closed) == (1, True)
    written = len(call.wire.written)
    call.wire.take_all()
    assert len(call.wire.written) == written, "nothing more is written"


# -- leaving ---------------------------------------------------------------------------------------------------------


def test_who_leaves_early_gives_the_connection_back_when_the_body_ends(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    call.answer.leave()
    call.feed(b"3\r\nabc\r\n")
    assert (call.answer.parts, call.owner.rested) == ([], [])
    call.feed(b"0\r\n\r\n")
    assert (len(call.owner.rested), call.wire.closed) == (1, False)
    call.answer.leave()
    assert not call.wire.closed


def test_who_leaves_early_does_not_wait_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    call.answer.leave(0.01)

    async def closed() -> None:
        while not call.wire.closed:
            await asyncio.sleep(0)

    call.run(closed())
    assert (call.answer.fault, call.owner.rested) == (Fault.LATE, [])
