"""A scripted provider on a real socket, for every test that needs an upstream which behaves, or misbehaves, on cue.

    async def handler(request: SeenRequest, reply: Script) -> None:
        await reply.sse(chat_chunks("Hello"))

    async with ScriptedUpstream(handler) as up:       # builders of answers stand in tests/replies.py
        ...                                 # up.url is the base URL ("http://127.0.0.1:port/v1")
        up.ledger[0].request.body           # what the provider saw; .sent, .completed, .gone: what it would bill

A handler decides byte by byte: whole answers (`json`, `sse`), pieces (`head`, `write`, `end`), raw bytes (`raw`) and
faults (`reset`, `close`, `hang`). `by_model` and `in_turn` choose a handler by model name or by order of arrival.
Nothing here sleeps: wait for `up.arrived(n)`, `entry.gone`, `entry.done`, `up.idle()`, each of them bounded.
Plain TCP and a parser of its own, so that no HTTP library tidies up what a test wants to be broken.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, cast

from tests.replies import chat_chunks, chat_reply, error_body, tool_call, usage

__all__ = [
    "BOUND",
    "Entry",
    "Handler",
    "Script",
    "ScriptedUpstream",
    "SeenRequest",
    "by_model",
    "chat_chunks",
    "chat_reply",
    "error_body",
    "in_turn",
    "tool_call",
    "usage",
]

BOUND = 10.0
"""Seconds any wait in this file may take before it fails the test."""

Handler = Callable[["SeenRequest", "Script"], Awaitable[None]]


@dataclass(frozen=True)
class SeenRequest:
    """One request as the provider read it. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def json(self) -> dict[str, Any]:
        """The decoded body; {} where it is not a JSON object."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def model(self) -> str:
        return str(self.json.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.json.get("stream"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.json.get("messages") or ())


@dataclass
class Entry:
    """One line of the ledger. `sent` counts the bytes written, `completed` says that the handler finished its answer,
    `gone` is set when the client closed the connection first, `done` when the handler has returned."""

    request: SeenRequest
    sent: int = 0
    completed: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedUpstream:
    """Serves `handler` on a free port of 127.0.0.1. Stopping it ends what still runs. An exception in a handler
    (a wrong assertion in a script, say) is raised by `__aexit__`. `kernel` bounds the bytes that the kernel takes of
    what is written to a client which does not read (else it is megabytes)."""

    def __init__(self, handler: Handler, *, kernel: int | None = None) -> None:
        self.handler = handler
        self._kernel = kernel
        self.ledger: list[Entry] = []
        self.connections = 0
        """Connections accepted so far."""
        self.url = ""
        self._open: set[_Connection] = set()
        self._changed = asyncio.Condition()
        self._errors: list[Exception] = []
        self._notices: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ScriptedUpstream:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        if self._kernel is not None:  # accepted sockets inherit it
            self._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._kernel)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        connections = tuple(self._open)
        for connection in connections:
            connection.kill()
        tasks = [connection.task for connection in connections if connection.task is not None]
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks, *self._notices, return_exceptions=True)
        if error is None and self._errors:
            raise self._errors[0]

    @property
    def open(self) -> int:
        """Connections open now."""
        return len(self._open)

    @property
    def busy(self) -> int:
        """Requests whose handler runs now."""
        return sum(not entry.done.is_set() for entry in self.ledger)

    async def arrived(self, count: int = 1) -> Entry:
        """Wait until `count` requests have been read whole; the entry of the last of them."""
        await self._until(lambda: len(self.ledger) >= count)
        return self.ledger[count - 1]

    async def idle(self, *, connections: int | None = None) -> None:
        """Wait until no handler runs and, where stated, at most that many connections are open."""
        await self._until(lambda: not self.busy and (connections is None or self.open <= connections))

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(true)

    def changed(self) -> None:
        """Tell the waiters; called by the connections."""
        notice = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def opened(self, connection: _Connection) -> None:
        self.connections += 1
        self._open.add(connection)

    def lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self.changed()

    def failed(self, error: Exception) -> None:
        self._errors.append(error)


class Script:
    """What a handler does to one request. Writing to a client that has left is ignored, as a socket would."""

    def __init__(self, connection: _Connection, entry: Entry) -> None:
        self._connection = connection
        self._chunked = False
        self.entry = entry

    async def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """A whole JSON answer with its length."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self.raw(_head(status, lines) + body)
        self._finished()

    async def sse(
        self, payloads: Iterable[Any], *, done: bool = True, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole event stream, one chunk per payload (bytes are taken as they are), closed by `[DONE]` if `done`."""
        await self.head(status, {"content-type": "text/event-stream", **(headers or {})})
        for payload in payloads:
            await self.event(payload)
        if done:
            await self.event(b"[DONE]")
        await self.end()

    async def head(
        self, status: int = 200, headers: Mapping[str, str] | None = None, *, length: int | None = None
    ) -> None:
        """The head alone; chunked, or with the `length` that the handler claims its body has."""
        self._chunked = length is None
        framing = {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        await self.raw(_head(status, {**framing, **(headers or {})}))

    async def write(self, data: bytes) -> None:
        """A piece of the body, framed as `head` said."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def event(self, payload: Any) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload, separators=(",", ":")).encode()
        await self.write(b"data: " + data + b"\n\n")

    async def end(self) -> None:
        """Close the framing; the answer is whole."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")
        self._finished()

    async def raw(self, data: bytes) -> None:
        """Exactly these bytes; waits while the client does not read."""
        if self.entry.gone.is_set():
            return
        self.entry.sent += len(data)
        await self._connection.write(data)

    async def reset(self) -> None:
        """RST: what was not read yet is lost for the client."""
        self._connection.stop(reset=True)

    async def close(self) -> None:
        """FIN after all that was written."""
        self._connection.stop()

    def _finished(self) -> None:
        self.entry.completed = not self.entry.gone.is_set()

    async def hang(self, until: asyncio.Event | None = None) -> None:
        """Say nothing until the client leaves, or until the event. Bounded, so that a wrong test ends."""
        async with asyncio.timeout(BOUND):
            await (until or self.entry.gone).wait()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream = upstream
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._lost = False
        self._stopped = False
        self._entry: Entry | None = None
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._upstream.opened(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._more.set()
        self._room.set()
        if self._entry is not None and not self._stopped:
            self._entry.gone.set()
        self._upstream.lost(self)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def write(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)
        await asyncio.sleep(0)  # uvloop writes, and finds the socket full, between two turns of the loop
        await self._room.wait()

    def stop(self, *, reset: bool = False) -> None:
        """End the connection from our side."""
        assert self._transport is not None
        self._stopped = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()

    def kill(self) -> None:
        """The test is over: end the connection and whatever its handler waits for."""
        assert self._transport is not None
        self._stopped = True
        self._transport.abort()
        if self.task is not None:
            self.task.cancel()

    async def _serve(self) -> None:
        while not self._stopped and (request := await self._read()) is not None:
            self._entry = entry = Entry(request)
            self._upstream.ledger.append(entry)
            self._upstream.changed()
            try:
                await self._upstream.handler(request, Script(self, entry))
            except Exception as error:
                self._upstream.failed(error)
                self.stop(reset=True)
            finally:
                entry.done.set()
                self._upstream.changed()

    async def _read(self) -> SeenRequest | None:
        end = await self._find(b"\r\n\r\n")
        if end is None:
            return None
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start = end + 4
        size = start + int(headers.get("content-length", "0"))
        while len(self._buffer) < size:
            if not await self._wait():
                return None
        body = bytes(self._buffer[start:size])
        del self._buffer[:size]
        return SeenRequest(method, path, headers, body)

    async def _find(self, mark: bytes) -> int | None:
        while (at := self._buffer.find(mark)) < 0:
            if not await self._wait():
                return None
        return at

    async def _wait(self) -> bool:
        """More bytes; False where the connection is over."""
        if self._lost or self._stopped:
            return False
        self._more.clear()
        await self._more.wait()
        return not self._lost


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1")


def by_model(scripts: Mapping[str, Handler], default: Handler | None = None) -> Handler:
    """The requested model's name selects the behaviour; without a default an unknown one is answered 404."""

    async def choose(request: SeenRequest, reply: Script) -> None:
        handler = scripts.get(request.model, default)
        if handler is None:
            await reply.json(404, error_body("no such model", code="model_not_found"))
        else:
            await handler(request, reply)

    return choose


def in_turn(*handlers: Handler) -> Handler:
    """The first request goes to the first handler and so on; the last one takes all that follow."""
    waiting = list(handlers)

    async def choose(request: SeenRequest, reply: Script) -> None:
        handler = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        await handler(request, reply)

    return choose
