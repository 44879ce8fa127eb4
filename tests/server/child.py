"""A server process of its own, to be sent signals. Run as `python -m tests.server.child '{...}'` from the checkout.

It says `HOST PORT` when it listens, and a word for each thing that the tests want to know. /stream runs until SIGUSR1,
then ends well; told to end, it ends with an error frame; /stubborn does not listen. /quick answers, /readyz says
whether the server wants more.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from typing import Any

import msgspec

from proxy.core.errors import ShuttingDown
from proxy.server.errors import error_frame, error_response
from proxy.server.guard import Limits
from proxy.server.head import request_id
from proxy.server.lifecycle import Drain, Listen, guard_for, serve


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the test wants. `files` limits open files, `fail` lets the start fail, `background` leaves work running."""

    listen: Listen
    files: int | None = None
    fail: bool = False
    background: bool = False


def say(*words: object) -> None:
    print(*words, flush=True)


class App:
    def __init__(self, order: Order, drain: Drain) -> None:
        self.order = order
        self.drain = drain
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["path"] == "/readyz":
            await _answer(send, 200 if self.drain.ready else 503, [], b"")
            return
        try:
            with self.drain.request():
                await self._serve(scope["path"], receive, send)
        except ShuttingDown as refusal:
            await _answer(send, *error_response(refusal, request_id(scope["headers"])))

    async def _serve(self, path: str, receive: Any, send: Any) -> None:
        if path == "/quick":
            await _answer(send, 200, [], b"quick")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        with self.drain.at_end(self.release.set if path == "/stream" else lambda: None):
            await self.release.wait()
        frame = error_frame(ShuttingDown("Cut short.")) if self.drain.ending.is_set() else b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": frame})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        if self.order.fail:
            await send({"type": "lifespan.startup.failed", "message": "as ordered"})
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.release.set)
        background = asyncio.create_task(self._background()) if self.order.background else None
        await send({"type": "lifespan.startup.complete"})
        await receive()
        say("closing", self.drain.running, background is None or background.done())
        await send({"type": "lifespan.shutdown.complete"})

    async def _background(self) -> None:
        with self.drain.work():
            await self.release.wait()


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = headers or [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> int:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    if order.files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order.files, order.files))
    drain = Drain()
    limits = Limits()
    guard = guard_for(limits)
    reloads = 0

    def on_reload() -> None:
        nonlocal reloads
        reloads += 1
        say("reload", reloads)
        if reloads == 1:
            raise ValueError("the first one fails")

    def announce(host: str, port: int) -> None:
        say(host, port, guard.limits.connections)

    return serve(App(order, drain), order.listen, limits, drain, on_reload=on_reload, announce=announce, guard=guard)


if __name__ == "__main__":
    sys.exit(main())
