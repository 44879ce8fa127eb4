"""A client that speaks in bytes, and a server that is nothing but the guard and a small application.

Belongs here: what tests of the protocol layer need. Never: an HTTP client library, which would repair or refuse the
very mistakes that these tests make. Every wait has a bound; none is a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
from uvicorn.server import ServerState

from proxy.core.errors import ClientLeft, WeirgateError
from proxy.server.body import read_body
from proxy.server.errors import error_response
from proxy.server.fence import Fence
from proxy.server.guard import Guard, Limits
from proxy.server.head import request_id

BOUND = 10.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ahead = b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(BOUND):
            await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(BOUND):
            top = self.ahead + await self.reader.readuntil(b"\r\n\r\n")
            self.ahead = b""
            first, *lines = top.decode("latin-1").split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self.chunks()])
            else:
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(status=int(first.split()[1]), headers=headers, body=body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(BOUND):
            return await self.reader.read()

    async def rest_or_reset(self) -> bytes:
        try:
            return await self.rest()
        except ConnectionError:
            return b""

    async def gone(self) -> bool:
        """Whether the server closes, cleanly or by a reset, without another byte."""
        return await self.rest_or_reset() == b""

    async def quiet(self, seconds: float) -> bool:
        """Whether the server says nothing, and keeps the connection, for so long."""
        try:
            self.ahead = await asyncio.wait_for(self.reader.read(1), seconds)
        except TimeoutError:
            return True
        return False


class Small:
    """/echo answers with the body's size and start; /hold and /flood run until the client is gone; /early answers
    without reading; /bug raises; everything else says its path."""

    def __init__(self, *, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.seen: list[str] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.seen.append(path)
        self.arrived.set()
        try:
            said = await self._serve(path, scope, receive, send)
        except ClientLeft:
            self.left.set()
            return
        except WeirgateError as error:
            status, headers, body = error_response(error, request_id(scope["headers"]))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        if said is not None:
            headers = [(b"content-length", b"%d" % len(said))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": said})

    async def _serve(self, path: str, scope: Any, receive: Any, send: Any) -> bytes | None:
        if path == "/echo":
            body = await read_body(receive, scope["headers"], limit=self.limit)
            return b"%d %s" % (len(body), body[:20])
        if path == "/hold":
            await self.release.wait()
            return b"held"
        if path == "/late-bug":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if path.endswith("bug"):
            raise ZeroDivisionError("a secret")
        if path == "/flood":
            await _flood(receive, send)
            self.left.set()
            return None
        return path.encode()


async def _flood(receive: Any, send: Any) -> None:
    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(until_gone())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not watch.done():
        await send({"type": "http.response.body", "body": b"x" * 16384, "more_body": True})
        await asyncio.sleep(0)
    await watch


Connect = Callable[[], Awaitable[Peer]]


@contextlib.asynccontextmanager
async def guarded(app: Any, limits: Limits | None = None) -> AsyncIterator[tuple[Connect, Guard]]:
    """Serve `app` behind a guard; yields a way to connect, and the guard."""
    guard = Guard(limits)
    state = ServerState()
    config = uvicorn.Config(
        Fence(app), ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False, interface="asgi3"
    )
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: guard.protocol(config, state, {}, loop), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Peer:
        # A small receive buffer: a reader that stops is noticed after kilobytes, not megabytes.
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        writers.append(writer)
        return Peer(reader, writer)

    try:
        yield connect, guard
    finally:
        for writer in writers:
            writer.transport.abort()
        for connection in tuple(guard.connections):
            connection.wire.abort()
        server.close()
        async with asyncio.timeout(BOUND):
            while guard.connections or state.tasks:
                await asyncio.sleep(0)


def post(path: str, body: bytes, *more: str, media: str = "application/json") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Type: {media}", f"Content-Length: {len(body)}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def get(path: str, *more: str) -> bytes:
    return ("\r\n".join([f"GET {path} HTTP/1.1", "Host: here", *more]) + "\r\n\r\n").encode("latin-1")
