"""One answer on its way to the client: a stream with a late head, or a body; and the watch on whether anyone is there.

A stream's head goes out with the first content, or after `hold` seconds, so that early errors keep their true status.
From then on a comment every `ping` seconds keeps the connection and the client's patience alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from proxy.core.done import DONE, Later
from proxy.core.errors import ClientLeft, ShuttingDown, StoreUnavailable
from proxy.core.steps import Report
from proxy.dialects.sse import comment
from proxy.server.errors import error_frame
from proxy.showing import context

_LOOK = 0.05
"""Seconds before a call's client is watched, or up to twice that: the quickest calls are over by then, and need no task
beside them."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_STREAM_HEAD = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Answering:
    """The client's side of one call; fulfils `showing.Client`."""

    __slots__ = (
        "_hold",
        "_lock",
        "_ping",
        "_pinging",
        "_quiet_since",
        "_report",
        "_saying",
        "_send",
        "_timer",
        "begun",
        "limits",
        "request_id",
    )

    def __init__(self, send: Send, request_id: str, *, hold: float, ping: float) -> None:
        self._send = send
        self.request_id = request_id
        self._hold = hold
        self._ping = ping
        self._report: Report | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._lock: asyncio.Lock | None = None
        """Held while a comment is written; there is one once comments may come."""
        self._saying = False
        """Whether something else is being written, or was when it was cut off."""
        self._quiet_since = 0.0
        self.begun = False
        self.limits: tuple[tuple[str, str], ...] = ()
        """Headers that tell what is left of the key's limits."""

    def hold(self) -> None:
        """Start the clock: after `hold` seconds the head goes out even if nothing else does."""
        self._timer = asyncio.get_running_loop().call_later(self._hold, self._keep_warm)

    def tell(self, report: Report) -> None:
        """What the head will say of the prompt."""
        self._report = report

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Our headers, as far as they are known by now."""
        found = [(b"x-request-id", self.request_id.encode("latin-1", "replace"))]
        if self.limits:
            found += [(name.encode(), value.encode()) for name, value in self.limits]
        report = self._report
        if report is not None:
            found.append((b"x-weirgate-conversation", report.conversation.encode("latin-1", "replace")))
            found.append((b"x-weirgate-context", context(report).encode()))
            if report.repaired:
                found.append((b"x-weirgate-repaired", b"%d" % report.repaired))
            if report.output is not None:
                found.append((b"x-weirgate-max-output", b"%d" % report.output))
        return found

    def write(self, data: bytes) -> Awaitable[None]:
        """Send a part of the stream, its head first. DONE where it has been sent: else it is, once this is awaited."""
        if not self.begun or (self._lock is not None and self._lock.locked()):
            return Later(self._write_behind, data)
        self._quiet_since = asyncio.get_running_loop().time()
        sent = self._send({"type": "http.response.body", "body": data, "more_body": True})
        return sent if sent is DONE else Later(self._said, sent)

    async def _write_behind(self, data: bytes) -> None:
        """Behind the head, or a comment that the client has still to take."""
        self._saying = True
        if self._lock is not None and self._lock.locked():
            async with self._lock:
                pass
        if not self.begun:
            await self._begin()
        self._saying = False
        await self.write(data)

    async def _said(self, sent: Awaitable[None]) -> None:
        self._saying = True
        await sent
        self._saying = False

    async def end(self, rest: tuple[bytes, ...]) -> None:
        """The end of a stream that is whole."""
        await self.stop()
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": b"".join(rest), "more_body": False})

    async def fail(self, error: BaseException) -> None:
        """End a stream that has begun with an error frame; `[DONE]` never follows."""
        await self.stop()
        await self._send({"type": "http.response.body", "body": error_frame(error), "more_body": False})

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """An answer in one piece."""
        if self._timer is not None or self._pinging is not None:
            await self.stop()
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def pour(self, media: bytes, pieces: AsyncIterator[bytes]) -> None:
        """An answer whose length nobody knows yet. The first piece decides whether there is one; where a later one
        fails the answer stays incomplete, and its connection is cut."""
        first = await anext(pieces)
        self.begun = True
        head = [(b"content-type", media), *self.headers()]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})
        await self._send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            async for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except StoreUnavailable:
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def stop(self) -> None:
        """No more comments; waits for one that is being written."""
        pinging = self.abandon()
        if pinging is not None:
            await asyncio.wait([pinging])

    def abandon(self) -> asyncio.Task[None] | None:
        """No more comments, without waiting; the task that wrote them, if one did."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pinging, self._pinging = self._pinging, None
        if pinging is not None:
            pinging.cancel()
        return pinging

    async def _begin(self) -> None:
        self.begun = True
        headers = [*_STREAM_HEAD, *self.headers()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def _keep_warm(self) -> None:
        self._timer = None
        self._lock = asyncio.Lock()
        self._pinging = asyncio.get_running_loop().create_task(self._comments(self._lock))

    async def _comments(self, lock: asyncio.Lock) -> None:
        loop = asyncio.get_running_loop()
        if not self.begun:
            await self._remark(lock, "weirgate is waiting for the model")
        while True:
            wait = self._quiet_since + self._ping - loop.time()
            if wait <= 0:
                await self._remark(lock, "ping")
            else:
                await asyncio.sleep(wait)

    async def _remark(self, lock: asyncio.Lock, text: str) -> None:
        """Write a comment, unless the client has still to take what is said."""
        self._quiet_since = asyncio.get_running_loop().time()
        if self._saying:
            return
        async with lock:
            if not self.begun:
                await self._begin()
            await self._send({"type": "http.response.body", "body": comment(text), "more_body": True})


class Watches:
    """Begins the watches. One timer for all calls, where each would set and cancel its own."""

    def __init__(self) -> None:
        self._young: set[Watch] = set()
        self._old: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, watch: Watch) -> None:
        self._young.add(watch)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._turn)

    def leave(self, watch: Watch) -> None:
        self._young.discard(watch)
        self._old.discard(watch)

    def _turn(self) -> None:
        for watch in self._old:
            watch.begin()
        self._old, self._young = self._young, set()
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._turn) if self._old else None


class Watch:
    """Cancels the work of a request when its client leaves, or when the server must end.

    Use as a context manager around the work; a cancellation that it caused comes out as ClientLeft or ShuttingDown.
    A client that left before the watch began (`_LOOK`) is missed then.
    """

    def __init__(self, receive: Receive, watches: Watches) -> None:
        self._receive = receive
        self._watches = watches
        self._why: BaseException | None = None
        self._work: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> Watch:
        self._work = asyncio.current_task()
        self._watches.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
        else:
            self._watches.leave(self)
        work, self._work = self._work, None
        if kind is asyncio.CancelledError and self._why is not None and work is not None:
            work.uncancel()
            raise self._why from None

    def end(self) -> None:
        """The server must stop now."""
        self._stop(ShuttingDown("The gateway is shutting down; the answer was cut off.", retry_after=1.0))

    def begin(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._stop(ClientLeft(said=False))

    def _stop(self, why: BaseException) -> None:
        if self._work is not None and self._why is None:
            self._why = why
            self._work.cancel()
