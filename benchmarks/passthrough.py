"""The bare pass-through: the gateway's server (uvicorn with uvloop and httptools, the same allocator settings), and
aiohttp, which was its client when the yardstick was made; none of its work.

What the gateway costs over this is the price of what it does; what this costs over nginx is the price of Python. So it
must stay as plain as it is: no routes, no checks, no logging, no trick that the gateway lacks.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp
import uvicorn
import uvloop

# The ASGI interface is untyped by nature: these three are its own shapes.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# glibc's names for mallopt's parameters, and the values of the gateway: keep megabyte bodies on the heap.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_large_blocks() -> None:
    """Absent on other C libraries, and then without effect."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(M_MMAP_THRESHOLD, 1 << 30):
            mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc before 2.35 takes
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_TOP_PAD, 32 << 20)


async def whole_body(receive: Receive) -> bytes:
    event = await receive()
    if not event.get("more_body"):
        return bytes(event.get("body", b""))
    parts = [event["body"]]
    while event.get("more_body"):
        event = await receive()
        parts.append(event.get("body", b""))
    return b"".join(parts)


class PassThrough:
    def __init__(self, client: aiohttp.ClientSession, upstream: str) -> None:
        self._client = client
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {"Content-Type": "application/json"}
        for name, value in scope["headers"]:
            if name == b"authorization":
                headers["Authorization"] = value.decode("latin-1")
        body = await whole_body(receive)
        async with self._client.request(
            scope["method"], self._upstream + scope["path"], data=body or None, headers=headers
        ) as answer:
            kind = answer.headers.get("Content-Type", "application/json")
            if kind.startswith("text/event-stream"):
                await send(_start(answer.status, [(b"content-type", kind.encode())]))
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return
            content = await answer.read()
            length = str(len(content)).encode()
            await send(_start(answer.status, [(b"content-type", kind.encode()), (b"content-length", length)]))
            await send({"type": "http.response.body", "body": content})


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> MutableMapping[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def serve(port: int, upstream: str) -> None:
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    async with client:
        config = uvicorn.Config(
            PassThrough(client, upstream),
            host="127.0.0.1",
            port=port,
            http="httptools",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
        )
        await uvicorn.Server(config).serve()


def main() -> None:
    arguments = argparse.ArgumentParser(description="a bare pass-through proxy")
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--upstream", required=True, help="without /v1: http://127.0.0.1:PORT")
    chosen = arguments.parse_args()
    keep_large_blocks()
    uvloop.run(serve(chosen.port, chosen.upstream))


if __name__ == "__main__":
    main()
