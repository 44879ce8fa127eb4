"""One HTTP/1.1 connection: a request's bytes out, an answer's head and body in.

Here: framing (length, chunks, end of the connection), what may and what may not be used again, how much is read ahead,
one timer. Never here: where a connection comes from (`pool`), what a failure is called (`compatible`), a task. The
parser calls back, the loop calls back, and a reader waits for one future at most: an answer that came in one piece
costs one wait, and so does a stream, whose pieces its reader takes as they come. Numbers: docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

HEAD: Final = 0
PIECE: Final = 1
WHOLE: Final = 2
NOTHING: Final = 3
"""What the reader of an exchange waits for: the head, any part of the body, all of it; or it has left."""

_OVERHEAD: Final = 64 * 1024
"""Bytes that may come without a byte of body among them: a head (each of its lines counts `_LINE` more than it is
long), trailers, extensions of chunks. Some providers send policies of tens of kilobytes."""
_LINE: Final = 32

_AHEAD: Final = 64 * 1024
"""Bytes of body that are read ahead of a reader before the provider is made to wait."""

_PIECE: Final = 32 * 1024
"""Bytes of a stream that are given on at once at most: what a client that reads slowly, or not at all, costs us."""

_JOINED: Final = 64 * 1024
"""Up to this many bytes a body is copied behind its head, so that both leave in one piece."""

_SLICE: Final = 1024 * 1024
"""Bytes of a body given to the transport at once (TLS encrypts them in one go); it asks for the next."""


_TIMEOUT: Final = re.compile(rb"(?:^|[\s,])timeout=(\d{1,6})(?:$|[\s,])")


class Fault(Enum):
    """Why an answer did not become whole."""

    ENDED = 1
    """The provider closed the connection."""
    BROKEN = 2
    """A reset, or another failure of the socket."""
    GARBLED = 3
    """Not HTTP, or more head than is allowed."""
    OVERSIZED = 4
    """The body is larger than its reader takes."""
    LATE = 5
    """A deadline passed."""
    DROPPED = 6
    """We closed it: the reader left, or the pool was closed."""


def _nothing(piece: bytes) -> bool:
    """Takes nothing yet."""
    return True


class Exchange:
    """One request's answer, filled by its connection.

    `status` is 0 until the head has come, `fields` are its header lines (names in lower case, repeated ones joined),
    `parts` is the body that nobody has taken yet, `held` its bytes. `whole` says that the body has come to its end,
    `fault` why it never will. `ends` and `idle` are deadlines: the loop's time by which all must be over, and seconds
    between two pieces while somebody waits for one. `most` bounds a body that is gathered whole. `take` is given the
    pieces while its reader waits for some, and says whether it has enough for now; so is the reader told who waits.
    """

    __slots__ = (
        "connection",
        "ends",
        "fault",
        "fields",
        "held",
        "idle",
        "most",
        "parts",
        "status",
        "take",
        "waiter",
        "wants",
        "whole",
    )  # fmt: skip

    def __init__(self, *, ends: float, idle: float, most: int) -> None:
        self.ends = ends
        self.idle = idle
        self.most = most
        self.connection: Connection | None = None
        self.status = 0
        self.fields: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.held = 0
        self.whole = False
        self.fault: Fault | None = None
        self.wants = HEAD
        self.take: Callable[[bytes], bool] = _nothing
        self.waiter: asyncio.Future[bool] | None = None

    def wake(self, *, enough: bool = False) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(enough)

    def fail(self, problem: Exception) -> None:
        """The reader failed while he was given a piece."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(problem)

    def hand_on(self) -> bool:
        """Give `take` what is held; whether it has enough."""
        parts = self.parts
        while parts:
            if self.held > _PIECE:
                piece = self._first()
            else:
                piece = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                self.held = 0
            if self.take(piece):
                return True
        return False

    def _first(self) -> bytes:
        """The front of what is held, at most `_PIECE` bytes."""
        parts = self.parts
        if len(parts[0]) > _PIECE:
            large = parts[0]
            parts[:1] = [large[at : at + _PIECE] for at in range(0, len(large), _PIECE)]
        size = count = 0
        for part in parts:
            if size + len(part) > _PIECE:
                break
            size += len(part)
            count += 1
        piece = b"".join(parts[:count])
        del parts[:count]
        self.held -= size
        return piece

    def abort(self) -> None:
        """Close the connection unless the body has come to its end. Safe to call twice."""
        if self.connection is not None:
            self.connection.drop()


class Owner(Protocol):
    """Who keeps connections."""

    def rest(self, connection: Connection, seconds: float) -> None:
        """Its exchange is over and it can have another; the provider says that it will wait `seconds` for one."""

    def freed(self) -> None:
        """An exchange is over and its connection is not to be used again."""

    def closing(self, connection: Connection) -> None:
        """It is not to be used again."""

    def closed(self, connection: Connection) -> None:
        """Its socket is free."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. Anything that comes while there is none closes it: it would be read as the
    answer to a question not yet asked."""

    __slots__ = (
        "_alarm",
        "_blocked",
        "_closed",
        "_dry",
        "_due",
        "_exchange",
        "_fields",
        "_head",
        "_headed",
        "_heard",
        "_loop",
        "_over",
        "_owner",
        "_parser",
        "_paused",
        "_reusable",
        "_timer",
        "_transport",
        "_unsent",
        "exchanges",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        self._loop = loop
        self._owner = owner
        self._exchange: Exchange | None = None
        self._closed = False
        self._blocked = False
        self._paused = False
        self._unsent: memoryview | None = None
        self._fields: dict[bytes, bytes] = {}
        self._head = 0
        self._dry = 0
        self._headed = False
        self._over = False
        self._reusable = True
        self._due = inf
        self._alarm = inf
        self._timer: asyncio.TimerHandle | None = None
        self._heard: Callable[[int], object] | None = None
        self.exchanges = 0
        self._parser = HttpResponseParser(self)
        # What servers of some age do, and what cannot be read in two ways: a bare LF, blanks behind a chunk's size.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    @property
    def usable(self) -> bool:
        """Whether a request can be sent. Also asks the system: between two turns of the loop an end, a reset or bytes
        that nobody asked for may have come that the loop has not told of yet."""
        return not (self._closed or self._transport.is_closing() or (self._heard is not None and self._heard(0)))

    @property
    def silent(self) -> bool:
        """Whether not a byte of the answer has come."""
        return not self._dry and not self._headed

    def start(self, exchange: Exchange, head: bytes, body: bytes, due: float) -> asyncio.Future[bool]:
        """Write a request; to be awaited: the head of its answer, or a fault. `due` is the loop's time by which the
        head must have come. The connection is `usable` and has no exchange."""
        self._exchange = exchange
        exchange.connection = self
        self._fields = {}
        self._head = self._dry = 0
        self._headed = self._over = False
        self.exchanges += 1
        waiter = exchange.waiter = self._loop.create_future()
        self.move(due)
        if len(body) <= _JOINED:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unsent = memoryview(body)
            self._push()
        return waiter

    def move(self, due: float) -> None:
        """The next deadline, as the loop's time. It may be later than the timer: that is then set again when it
        rings, so that a busy connection sets its timer once in a while and not for every call and chunk."""
        self._due = due
        if due < self._alarm:
            if self._timer is not None:
                self._timer.cancel()
            self._alarm = due
            self._timer = self._loop.call_at(due, self._ring)

    def expect(self, wants: int) -> asyncio.Future[bool]:
        """To be awaited by the reader: what it `wants`, the end, or a fault. Until then the idle deadline runs.
        Whoever wants pieces is given them meanwhile, and told whether he said that he has enough."""
        exchange = self._exchange
        assert exchange is not None
        exchange.wants = wants
        self._due = due = self._patience(exchange)
        if due < self._alarm:
            self.move(due)
        if self._paused:
            self.resume()
        waiter = exchange.waiter = self._loop.create_future()
        return waiter

    def resume(self) -> None:
        """Read on, if the provider was made to wait."""
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def leave(self, seconds: float) -> None:
        """Nobody reads on. Should the body end within `seconds`, the connection can still be used again."""
        exchange = self._exchange
        assert exchange is not None
        exchange.wants = NOTHING
        exchange.parts.clear()
        self.move(min(self._loop.time() + seconds, exchange.ends))
        self.resume()

    def drop(self) -> None:
        """Close at once, without waiting to flush anything. Safe to call twice."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.connection = None
            if exchange.fault is None:
                exchange.fault = Fault.DROPPED
            if exchange.fault in (Fault.DROPPED, Fault.LATE):
                exchange.parts.clear()
            exchange.wake()
            self._owner.freed()
        if not self._closed:
            self._closed = True
            self._unsent = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._owner.closing(self)
            self._transport.abort()

    # -- called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        sock = transport.get_extra_info("socket")
        if sock is not None:
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            self._heard = poller.poll

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.drop()
            return
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            # Behind a whole answer it is only the connection that is spoilt.
            self._reusable = False
            if not self._over:
                self._fail(exchange, Fault.GARBLED)
                return
        if self._over:
            self._finish(exchange)
        elif self._dry > _OVERHEAD:
            self._fail(exchange, Fault.GARBLED)
        else:
            self._progress(exchange)

    def eof_received(self) -> None:
        self._ended(Fault.ENDED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(Fault.ENDED if exc is None else Fault.BROKEN)
        del self._parser  # it holds our methods
        self._owner.closed(self)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._push()

    # -- called by the parser --

    def on_message_begin(self) -> None:
        if self._over:
            raise HttpParserError  # a second answer; ends up in data_received

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer
        self._head += len(name) + len(value) + _LINE
        if self._head > _OVERHEAD:
            raise HttpParserError
        fields = self._fields
        key = name.lower()
        fields[key] = value if key not in fields else fields[key] + b", " + value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        exchange = self._exchange
        if exchange is not None and status >= 200:
            self._headed = True
            exchange.fields = self._fields
            exchange.status = status

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            self._dry = 0
            exchange.held += len(data)
            exchange.parts.append(data)

    def on_message_complete(self) -> None:
        if self._headed:
            self._over = True
            self._reusable = self._parser.should_keep_alive()
        else:  # 1xx
            self._fields = {}

    # -- ours --

    def _progress(self, exchange: Exchange) -> None:
        """Wake the reader if what it waits for has come; make the provider wait if nobody reads."""
        wants = exchange.wants
        if exchange.waiter is None:
            if wants == NOTHING:
                exchange.parts.clear()
            elif exchange.held > _AHEAD and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        elif wants == WHOLE:
            if exchange.held > exchange.most:
                self._fail(exchange, Fault.OVERSIZED)
            else:
                self._due = self._patience(exchange)
        elif wants == PIECE:
            if exchange.parts and not exchange.waiter.done():
                self._hand_on(exchange)
        elif exchange.status:
            self._due = exchange.ends
            exchange.wake()

    def _hand_on(self, exchange: Exchange) -> None:
        """Give the reader who waits for pieces what is held."""
        try:
            enough = exchange.hand_on()
        except Exception as problem:
            exchange.fail(problem)
            return
        if enough:
            self._due = exchange.ends  # while nobody waits only the end counts: a slow reader is no idle provider
            exchange.wake(enough=True)
        else:
            self._due = self._patience(exchange)

    def _patience(self, exchange: Exchange) -> float:
        """Until when the next piece must have come."""
        due = self._loop.time() + exchange.idle
        return due if due < exchange.ends else exchange.ends

    def _finish(self, exchange: Exchange) -> None:
        self._exchange = None
        exchange.connection = None
        exchange.whole = True
        exchange.wake()
        if self._reusable and self._unsent is None and not self._transport.get_write_buffer_size():
            self._owner.rest(self, _kept(exchange.fields))
        else:
            self._owner.freed()
            self.drop()

    def _fail(self, exchange: Exchange, fault: Fault) -> None:
        exchange.fault = fault
        self.drop()

    def _ended(self, fault: Fault) -> None:
        exchange = self._exchange
        if exchange is not None:
            if fault is Fault.ENDED and self._headed and _until_the_end(exchange.fields):
                self._reusable = False
                self._finish(exchange)
            else:
                self._fail(exchange, fault)
        self.drop()

    def _push(self) -> None:
        """Write on while the transport takes it."""
        while self._unsent is not None and not self._blocked:
            part = self._unsent[:_SLICE]
            rest = self._unsent[_SLICE:]
            self._unsent = rest if rest else None
            self._transport.write(part)

    def _ring(self) -> None:
        self._timer = None
        self._alarm = inf
        if self._loop.time() < self._due:
            self.move(self._due)
        elif self._exchange is not None:
            self._fail(self._exchange, Fault.LATE)
        else:
            self.drop()


def _kept(fields: dict[bytes, bytes]) -> float:
    """Seconds that the provider keeps an idle connection, where it says so (`Keep-Alive: timeout=5`)."""
    told = fields.get(b"keep-alive")
    found = _TIMEOUT.search(told) if told is not None else None
    return inf if found is None else float(found[1])


def _until_the_end(fields: dict[bytes, bytes]) -> bool:
    """Whether the end of the connection is the end of the body."""
    coding = fields.get(b"transfer-encoding")
    if coding is None:
        return b"content-length" not in fields
    return coding.rpartition(b",")[2].strip().lower() != b"chunked"
