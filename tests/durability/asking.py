"""A client that speaks in bytes: it knows what of an answer has arrived, and can leave or stop reading at any point.

    with await weir.connect() as line:
        await line.send(chat("model", "Hello", stream=True, id="r-1"))
        status, headers = await line.head(); await line.piece(); line.leave()

An answer is *acknowledged* when all of it is here: the JSON body to its last byte, or the `[DONE]` of a stream.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

BOUND = 30.0
DONE = b"data: [DONE]"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def acknowledged(self) -> bool:
        return self.status == 200 and (DONE in self.body if self.streamed else True)

    @property
    def payloads(self) -> list[dict[str, Any]]:
        if not self.streamed:
            return [json.loads(self.body)]
        lines = [line[5:].strip() for line in self.body.split(b"\n") if line.startswith(b"data:")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def code(self) -> str | None:
        """The code of the error that it ends with, if it does."""
        error = self.payloads[-1].get("error") if self.payloads else None
        return None if error is None else error["code"]

    @property
    def text(self) -> str:
        said = [choice for payload in self.payloads for choice in payload.get("choices") or ()]
        return "".join(choice.get("delta", choice.get("message", {})).get("content") or "" for choice in said)

    @property
    def compaction(self) -> str:
        parts = (part.strip().partition("=") for part in self.headers.get("x-weirgate-context", "").split(";"))
        return next((value for name, _, value in parts if name == "compaction"), "none")


class Line:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.stage = "connected"
        """How far the answer to the last request has come."""
        self._chunked = False
        self._left = 0

    @classmethod
    async def open(cls, port: int, *, receive: int | None = None) -> Line:
        """`receive` bounds what the kernel takes for a client that does not read."""
        sock = socket.socket()
        try:
            if receive is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            sock.setblocking(False)
            async with asyncio.timeout(BOUND):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
                reader, writer = await asyncio.open_connection(sock=sock, limit=receive or 1 << 20)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exit: object) -> None:
        self.leave()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.stage = "before the head"

    async def head(self) -> tuple[int, dict[str, str]]:
        top = await self._within(self.reader.readuntil(b"\r\n\r\n"))
        first, *lines = top.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        self._left = int(headers.get("content-length", "0"))
        self.stage = "in the middle"
        return int(first.split()[1]), headers

    async def piece(self) -> bytes:
        """The next of the body as it comes; b"" at its end. Raises IncompleteReadError where it breaks off."""
        if not self._chunked:
            size, self._left = self._left, 0
            return await self._within(self.reader.readexactly(size))
        size = int((await self._within(self.reader.readuntil(b"\r\n"))).strip(), 16)
        return (await self._within(self.reader.readexactly(size + 2)))[:-2]

    async def whole(self) -> Reply:
        status, headers = await self.head()
        return Reply(status, headers, await self.rest())

    async def rest(self) -> bytes:
        body = b""
        while piece := await self.piece():
            body += piece
        return body

    def leave(self, *, reset: bool = True) -> None:
        """Without another word: by a reset, or politely."""
        if reset:
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def _within(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        async with asyncio.timeout(BOUND):
            return await reading


def chat(
    model: str,
    messages: str | Sequence[dict[str, Any]],
    *,
    stream: bool,
    id: str,
    key: str | None = None,
    mode: str | None = None,
    **more: Any,
) -> bytes:
    """A request for a chat completion, named `id`; `mode` is asked for in a header, `more` are further members."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body = json.dumps({"model": model, "messages": said, "stream": stream, **more}).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"x-request-id: {id}",
        *([f"Authorization: Bearer {key}"] if key else []),
        *([f"x-weirgate-mode: {mode}"] if mode else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
