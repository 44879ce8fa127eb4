"""Limits and deadlines on every connection, in the protocol layer, where uvicorn has none.

Belongs here: what a connection may cost before and while a request on it is served: seconds, bytes, requests in a row.
Never: what a request means. An ASGI layer would be too late: it runs after the head is in memory, cannot see a silent
connection, and cannot tell a slow reader from a slow model (research/reliability.md 0.4, 0.6).

Every refusal is the JSON error of `errors`, written in the place of the answer it replaces: never into the middle of
another one. One timer sweeps all connections; a request that arrives whole costs no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import IntEnum
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application, HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from proxy.core.errors import Busy, HeadersTooLarge, TooLarge, TooSlow, WeirgateError
from proxy.server import head
from proxy.server.arriving import LEAST, Arriving
from proxy.server.cycle import Cycle, Door
from proxy.server.errors import error_response
from proxy.server.limits import Limits as Limits
from proxy.server.overload import Overload
from proxy.server.stalled import Stalled

_OVERHEAD = 128 * 1024
"""Bytes of chunk framing and trailers allowed beside a body, on top of eight for each byte of the body itself."""

_WAITING = 16 * 1024
"""Bytes of an answer that wait for a client before whoever writes it must wait too."""


class Phase(IntEnum):
    """Where the reading side of a connection stands. The answering side is the cycle's business."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    READ = 3
    """The request has been read whole."""
    LINGER = 4
    """Answered and half closed: what still comes is thrown away, so that the answer is not lost to a reset."""


# As names of the module: a look-up on an enum costs ten times as much, and a request makes a dozen.
_IDLE, _HEAD, _BODY, _READ, _LINGER = Phase


class Guard:
    """The limits, and the connections they hold for. One per server; `protocol` is what uvicorn is given as `http`."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.hosts = frozenset(host.encode("ascii").lower() for host in self.limits.hosts)
        self.connections: set[GuardedProtocol] = set()
        self.admitted = 0
        self.refused: Counter[str] = Counter()
        """Refusals by error code, for metrics. Closed without an answer: `idle`, `silent`, `write_idle`."""
        self.leaving = False
        """Set when the server drains: every further answer ends its connection."""
        self.overload: Overload | None = None
        self._timer: asyncio.TimerHandle | None = None

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> GuardedProtocol:
        return GuardedProtocol(self, config, server_state, app_state, _loop)

    def enter(self, connection: GuardedProtocol) -> bool:
        """Watch this connection; whether it is within the cap. Those that are told so are few, the rest is cut."""
        self.connections.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self.limits.tick, self._sweep, connection.loop)
        if self.admitted < self.limits.connections:
            self.admitted += 1
            return True
        if len(self.connections) - self.admitted > self.limits.connections // 8 + 16:
            connection.wire.abort()
        return False

    def exit(self, connection: GuardedProtocol) -> None:
        self.connections.discard(connection)
        if connection.admitted:
            connection.admitted = False
            self.admitted -= 1

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.limits.tick, self._sweep, loop) if self.connections else None
        now = loop.time()
        for connection in tuple(self.connections):
            connection.check(now)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol within `Limits`."""

    __slots__ = (
        "admitted",
        "arriving",
        "began",
        "body_taken",
        "guard",
        "limits",
        "named_by",
        "phase",
        "piece",
        "running",
        "served",
        "shedding",
        "since",
        "stalled",
        "taken",
        "verdict",
        "wire",
    )

    def __init__(
        self,
        guard: Guard,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.guard = guard
        self.limits = guard.limits
        self.wire: asyncio.Transport = None  # type: ignore[assignment]
        self.phase = _IDLE
        self.since = 0.0
        """When this phase began, on the loop's clock."""
        self.running: RequestResponseCycle | None = None
        """The cycle being answered; uvicorn's `cycle` is the one read last."""
        self.verdict: WeirgateError | None = None
        """A refusal that waits for earlier answers on this connection."""
        self.named_by: head.Headers = ()
        """The headers of the request being read: a refusal goes by the id that the client gave."""
        self.admitted = False
        self.served = False
        self.shedding = False
        """The request being read was refused already; its body is thrown away."""
        self.taken = 0
        """Bytes received of the current request, not counting a first piece that it shares with another one."""
        self.body_taken = 0
        self.piece = 0
        self.began = False
        self.stalled: Stalled = None  # type: ignore[assignment]
        self.arriving: Arriving | None = None
        """Reads in our place while the rest of a large body comes."""

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.wire = transport
        transport.set_write_buffer_limits(_WAITING)
        super().connection_made(cast("asyncio.Transport", Door(transport, self)))
        self.since = self.loop.time()
        self.stalled = Stalled(self.since)
        self.admitted = self.guard.enter(self)
        if not self.admitted and not transport.is_closing():
            self._write_refusal(Busy("Too many connections to this server.", retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.exit(self)
        self.phase = _LINGER
        running = self.running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close, after what is written has been sent. A request that is still arriving is read to its end first."""
        if self.phase is _BODY:
            self._linger()
        elif self.phase is not _LINGER:
            self.wire.close()

    def is_closing(self) -> bool:
        return self.phase is _LINGER or self.wire.is_closing()

    def shutdown(self) -> None:
        """The server stops accepting. Idle connections close; a request under way is answered first."""
        if self.phase is _IDLE:
            self.wire.close()
        elif self.cycle is not None:
            self.cycle.keep_alive = False

    # Bytes in

    def data_received(self, data: bytes) -> None:
        before = self.phase
        if before is _LINGER or self.verdict is not None:
            self._discard(len(data))
            return
        self.piece = len(data)
        self.began = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return
        except httptools.HttpParserError as caught:
            cause = caught.__context__
            known = cause if isinstance(cause, WeirgateError) else head.bad_http("This is not a valid HTTP request.")
            self.refuse(known)
            return
        phase = self.phase
        if phase is _READ or phase is _LINGER or (phase is _IDLE and before is not _IDLE):
            return  # in the last case it was answered before it had come whole
        self._await_more(before)

    def _await_more(self, before: Phase) -> None:
        """The request is not here whole: count what it took and start its clock."""
        if before is _IDLE or not self.began:
            self.taken += self.piece
        if before is not self.phase or self.began:
            self.since = self.loop.time()
        if self.phase is _IDLE:
            # Blank lines between requests are legal, and still not a request.
            self.phase = _HEAD
        if self.phase is _HEAD:
            if self.taken > self.limits.head_bytes:
                self.refuse(HeadersTooLarge(f"The request head is larger than {self.limits.head_bytes} bytes."))
        elif self.taken > _OVERHEAD + 9 * self.body_taken or len(self.headers) > self.limits.head_fields:
            self.refuse(head.bad_http("The body carries more framing or trailers than data."))

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.phase = _HEAD
        self.began = True
        self.taken = 0
        self.named_by = self.headers

    def on_headers_complete(self) -> None:
        limits = self.limits
        headers = self.headers
        if len(headers) > limits.head_fields:
            raise HeadersTooLarge(f"The request has more than {limits.head_fields} header fields.")
        if self.taken + self.piece > limits.head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > limits.head_bytes:
                raise HeadersTooLarge(f"The request head is larger than {limits.head_bytes} bytes.")
        parser = self.parser
        wrong = head.fault(
            parser.get_method(),
            self.url,
            parser.get_http_version(),
            headers,
            body_bytes=limits.body_bytes,
            served_hosts=self.guard.hosts,
        )
        if wrong is not None:
            raise wrong
        if len(self.pipeline) >= limits.pipelined:
            raise Busy("Too many requests at once on one connection.", retry_after=1.0)
        overload = self.guard.overload
        if overload is not None and overload.serving * 2 >= overload.limit:
            running = self.running
            if (running is None or running.response_complete) and overload.sheds(self.url):
                self._shed()
                return
        self._open_cycle()
        # Trailers are parsed as headers; these must not reach a request that is being served already.
        self.headers = []
        self.body_taken = 0
        self.phase = _BODY

    def _open_cycle(self) -> None:
        """The request's turn: now, or after those before it."""
        parser, before = self.parser, self.cycle
        version = parser.get_http_version()
        path, _, query = self.url.partition(b"#")[0].partition(b"?")
        name = path.decode("ascii")
        scope: HTTPScope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(name) if "%" in name else name,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
            "state": self.app_state.copy(),
        }
        # An upgrade that we do not offer is ignored, as HTTP allows; the parser cannot go on after it.
        last = self.guard.leaving or version == "1.0" or parser.should_upgrade()
        self.cycle = cycle = Cycle(self, scope, keep_alive=not last and parser.should_keep_alive())
        if before is None or before.response_complete:  # type: ignore[redundant-expr]
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _shed(self) -> None:
        """Refuse the request whose head is here, at the least cost: where its body is small, the connection stays."""
        error = Busy("The gateway has more to do than it can: ask again.", code="queue_full", retry_after=1.0)
        small = 0 < head.length(self.headers) < LEAST and not self.expect_100_continue
        if not small or self.guard.leaving or not self.parser.should_keep_alive():
            raise error
        self._write_error(error, close=False)
        self.guard.refused[error.code] += 1
        self.phase, self.body_taken, self.shedding, self.served = _BODY, 0, True, True

    def on_body(self, body: bytes) -> None:
        self.body_taken += len(body)
        if self.body_taken > self.limits.body_bytes:
            raise TooLarge(f"The request body is larger than the limit of {self.limits.body_bytes} bytes.")
        if not self.shedding:
            cast("Cycle", self.cycle).take(body, more=True)

    def on_message_complete(self) -> None:
        if self.shedding:
            self.shedding, self.phase, self.since = False, _IDLE, self.loop.time()
            return
        cast("Cycle", self.cycle).take(b"", more=False)
        if self.cycle.response_complete:
            self.phase = _IDLE
            self.since = self.loop.time()
        else:
            self.phase = _READ

    def gather(self, cycle: Cycle) -> bool:
        """Whoever serves `cycle` asks for its body: where much of it is still to come, it will be given whole. Reading
        is paused after this."""
        if self.arriving is not None:
            return True
        if self.phase is not _BODY or cycle is not self.cycle:
            return False
        length = head.length(self.named_by)
        if length - self.body_taken < LEAST:
            return False
        begun = cycle.give_back()
        self.flow.pause_reading()
        self.arriving = Arriving(self, self.wire, begun, length)
        self.wire.set_protocol(self.arriving)
        return True

    def gathering(self, size: int) -> None:
        self.body_taken += size

    def gathered(self, body: bytes) -> None:
        self._read_again()
        # The parser has not seen the body, and waits for it.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        cast("Cycle", self.cycle).body = body
        self.on_message_complete()
        self.flow.read_paused = True
        self.flow.resume_reading()

    def _read_again(self) -> None:
        """What comes from here on is read by us; reading is paused."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.stop()
            self.wire.pause_reading()
            self.wire.set_protocol(self)
            self.flow.read_paused = True

    def _discard(self, size: int) -> None:
        self.taken += size
        if self.phase is _LINGER and self.taken > self.limits.body_bytes:
            self.wire.abort()

    # Answers out

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_response_complete(self) -> None:
        """Go on with the next request. Replaces uvicorn's, which arms and cancels a timer for each request."""
        self.server_state.total_requests += 1
        self.served = True
        if self.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self.verdict is not None:
            self._write_refusal(self.verdict)
        else:
            if self.phase is _READ:
                self.phase = _IDLE
            self.since = self.loop.time()

    def refuse(self, error: WeirgateError) -> None:
        """Answer the request being read with `error`, in its turn, and end the connection."""
        if self.is_closing():
            return
        running = self.running
        if running is None or running.response_complete:
            # An answer that has been given already to a request still arriving stands; only its rest is refused.
            if self.phase is _BODY:
                self._count_and_linger(error)
            else:
                self._write_refusal(error)
        elif running is self.cycle and self.phase is _BODY:
            running.disconnected = True
            running.message_event.set()
            if running.response_started:
                self._count_and_linger(error)
            else:
                self._write_refusal(error)
        else:
            if self.phase is _BODY:
                self.pipeline.popleft()
            self.verdict = error
            self.flow.pause_reading()

    def _write_refusal(self, error: WeirgateError) -> None:
        self._write_error(error, close=True)
        self._count_and_linger(error)

    def _write_error(self, error: WeirgateError, *, close: bool) -> None:
        identity = head.request_id(self.named_by)
        allow = head.METHODS if error.status == 405 else None
        status, headers, body = error_response(error, identity, close=close, allow=allow)
        lines = [STATUS_LINE[status]]
        for name, value in [*self.server_state.default_headers, *headers]:
            lines += (name, b": ", value, b"\r\n")
        lines += (b"\r\n", body)
        self.wire.write(b"".join(lines))

    def _count_and_linger(self, error: WeirgateError) -> None:
        self.guard.refused[error.code] += 1
        self._linger()

    def _linger(self) -> None:
        self.phase = _LINGER
        self.since = self.loop.time()
        self.taken = 0
        if self.wire.is_closing():
            return
        self._read_again()
        self.flow.resume_reading()
        if self.wire.can_write_eof():
            self.wire.write_eof()
        else:
            self.wire.close()

    # Time

    def check(self, now: float) -> None:
        """Called by the sweep. Cuts what has run over its time."""
        limits = self.limits
        if self.stalled.seconds(self.wire, now) > limits.write_idle:
            self.guard.refused["write_idle"] += 1
            self.wire.abort()
            return
        phase = self.phase
        if phase is _READ:
            return
        if phase is _LINGER:
            if now - self.since > limits.linger:
                self.wire.close()
        elif self._held_by_us():
            self.since = now
        elif phase is _IDLE:
            if now - self.since > (limits.keep_alive if self.served else limits.head_seconds):
                self.guard.refused["idle" if self.served else "silent"] += 1
                self.wire.close()
        elif phase is _HEAD:
            if now - self.since > limits.head_seconds:
                self.refuse(TooSlow("The request head did not arrive in time."))
        elif now - self.since > limits.body_seconds + self.body_taken / limits.body_rate:
            self.refuse(TooSlow("The request body did not arrive in time."))

    def _held_by_us(self) -> bool:
        """Whether the client waits for us, so that its silence says nothing about it."""
        running = self.running
        if running is None or running.response_complete:
            return False
        if self.phase is not _BODY:
            return True
        return running is not self.cycle or self.flow.read_paused or running.waiting_for_100_continue
