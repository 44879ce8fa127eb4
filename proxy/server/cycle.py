"""One request's turn on a connection: what the application is told of it, and its answer as bytes.

Belongs here: the ASGI messages of one request. Never: limits and deadlines (`guard`), or what a request means.
uvicorn's cycle, with its two verbs written for what is sent here: a head leaves together with what follows it, in one
piece, and nobody waits for a body that is there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any, Protocol, cast

from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.core.done import DONE, Later

_BODILESS = (204, 304)
_CONTROLS = bytes(range(32)) + b"\x7f"


class Gathering(Protocol):
    """The connection, as far as bodies go."""

    def gather(self, cycle: Cycle) -> bool:
        """The body of `cycle` is asked for. Whether it will be given whole, and not as its parts come."""


class Closing(Protocol):
    def close(self) -> None: ...

    def is_closing(self) -> bool: ...


class Door:
    """The transport as uvicorn's parts see it: all of it, except that to close it is the protocol's decision.

    uvicorn closes as soon as an answer is complete. With part of the request unread the kernel then sends a reset,
    which can overtake the answer.
    """

    __slots__ = ("close", "get_extra_info", "is_closing", "pause_reading", "resume_reading", "write")

    def __init__(self, transport: asyncio.Transport, connection: Closing) -> None:
        self.write = transport.write
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info
        self.close = connection.close
        self.is_closing = connection.is_closing


class Signal:
    """An event that one task at most waits for."""

    __slots__ = ("_waiter", "given")

    def __init__(self) -> None:
        self.given = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        return self._waiter is not None

    def set(self) -> None:
        self.given = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        while not self.given:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Cycle(RequestResponseCycle):
    """`body` is what has come of it and was not received yet."""

    body: bytes  # type: ignore[assignment]
    message_event: Signal  # type: ignore[assignment]

    def __init__(self, connection: HttpToolsProtocol, scope: HTTPScope, *, keep_alive: bool) -> None:
        self.scope = scope
        self._connection = cast("Gathering", connection)
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.default_headers = connection.server_state.default_headers
        self.message_event = Signal()
        self.on_response = connection.on_response_complete
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = connection.expect_100_continue
        self.body = b""
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding = None
        self.expected_content_length = 0
        self._head = b""
        """Goes out with the first part of the body."""

    def take(self, part: bytes, *, more: bool) -> None:
        """A part of the request's body has come; `more`: it is not the last."""
        if self.response_complete:
            return
        self.more_body = more
        self.body = self.body + part if self.body else part
        signal = self.message_event
        # Whoever waits for it takes it before more is read.
        if more and len(self.body) > HIGH_WATER_LIMIT and not signal.awaited:
            self.flow.pause_reading()
        signal.set()

    def give_back(self) -> bytes:
        """What has come of the body and was not received: it will come again, with the rest."""
        begun, self.body = self.body, b""
        self.message_event.given = False
        return begun

    async def receive(self) -> MutableMapping[str, Any]:  # type: ignore[override]
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        signal = self.message_event
        if not self.disconnected and not self.response_complete:
            if self.more_body:
                self._connection.gather(self)
            self.flow.resume_reading()
            if not signal.given:
                await signal.wait()
            signal.given = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def send(self, message: MutableMapping[str, Any]) -> Awaitable[None]:  # type: ignore[override]
        """At once, unless the client has yet to take what was sent before."""
        if self.flow.write_paused and not self.disconnected:
            return Later(self._send_drained, message)
        self._answer(message)
        return DONE

    async def _send_drained(self, message: MutableMapping[str, Any]) -> None:
        await self.flow.drain()
        self._answer(message)

    def _answer(self, message: MutableMapping[str, Any]) -> None:
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            self._go_on(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start" and not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"The message {kind} has no place here.")

    def _begin(self, status: int, headers: Any) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        told = [STATUS_LINE[status]]
        lines = 2
        closes = False
        for name, value in (*self.default_headers, *headers):
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                closes, self.keep_alive = True, False
            told += (name, b": ", value, b"\r\n")
            lines += 1
        if not self.keep_alive and not closes:
            told.append(b"connection: close\r\n")
            lines += 1
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _BODILESS:
            self.chunked_encoding = True
            told.append(b"transfer-encoding: chunked\r\n")
            lines += 1
        told.append(b"\r\n")
        head = b"".join(told)
        if len(head) - len(head.translate(None, _CONTROLS)) != 2 * lines:
            raise RuntimeError("A header of the answer holds a control character.")
        self._head = head

    def _go_on(self, body: bytes, more: bool) -> None:
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            if body:
                head += b"%x\r\n%b\r\n" % (len(body), body)
            head, body = b"", head if more else head + b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("The answer is not as long as its head says.")
        self.transport.write(head + body if head else body)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
