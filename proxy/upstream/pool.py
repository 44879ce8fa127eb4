"""The connections to one upstream: which are free, how many are in use, who waits for one.

Here: keep-alive, the bound, the connect deadline, TLS. Never here: what is said over a connection (`http1`), what a
failure is called (`compatible`). The connection used last is used next, so that those not needed grow old and close.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final

from proxy.upstream.dial import connect
from proxy.upstream.http1 import Connection

_KEEP: Final = 30.0
"""Seconds an idle connection is kept: below the silent cut of common load balancers and address translators (60)."""

_MARGIN: Final = 1.0
"""Seconds that we close a connection before its provider would: a request on its way then would be lost."""

_CLOSING: Final = 1.0
"""Seconds `close` waits for sockets to go."""


class Closed(Exception):
    """The pool was closed before there was a connection."""


class Pool:
    """Fulfils `http1.Owner`. Belongs to the running loop. `limit` bounds the exchanges under way; `seconds` is the
    connect deadline, in which also waiting for one of them to end is counted."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, limit: int, seconds: float) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._limit = limit
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._clocks: set[asyncio.Timeout] = set()
        self._closed = False
        self._empty: asyncio.Future[None] | None = None

    @property
    def in_use(self) -> int:
        """Exchanges under way and those who wait to begin one."""
        return self._busy + len(self._waiting)

    @property
    def full(self) -> bool:
        return self._busy >= self._limit

    def take(self) -> Connection | None:
        """A kept connection, if there is one and the bound allows it."""
        if self._busy < self._limit and (kept := self._kept()) is not None:
            self._busy += 1
            return kept
        return None

    async def new(self, until: float, *, fresh: bool = False) -> Connection:
        """A connection as soon as there can be one, within the connect deadline and before `until` (the loop's time);
        `fresh`: not a kept one. Raises TimeoutError, OSError, Closed."""
        if self._closed:
            raise Closed
        clock = asyncio.timeout_at(min(self._loop.time() + self._seconds, until))
        try:
            async with clock:
                self._clocks.add(clock)
                await self._slot()
                try:
                    # The one whose slot this was may have left its connection.
                    return (None if fresh else self._kept()) or await self._connect()
                except BaseException:
                    self.freed()
                    raise
        except TimeoutError:
            if self._closed:
                raise Closed from None
            raise
        finally:
            self._clocks.discard(clock)

    async def close(self) -> None:
        """End every exchange and refuse all who wait, before the first wait; then wait for the sockets to go, within
        `_CLOSING`. Safe to call twice."""
        self._closed = True
        for clock in self._clocks:
            if not clock.expired():
                clock.reschedule(self._loop.time())
        for connection in tuple(self._open):
            connection.drop()
        if self._open:
            if self._empty is None:
                self._empty = self._loop.create_future()
            await asyncio.wait((self._empty,), timeout=_CLOSING)

    # -- as the owner --

    def rest(self, connection: Connection, seconds: float) -> None:
        self.freed()
        if seconds <= _MARGIN:
            connection.drop()
            return
        self._idle[connection] = None
        kept = seconds - _MARGIN
        connection.move(self._loop.time() + (kept if kept < _KEEP else _KEEP))

    def freed(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot is handed on
                return
        self._busy -= 1

    def closing(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    # -- ours --

    def _kept(self) -> Connection | None:
        idle = self._idle
        while idle:
            connection, _ = idle.popitem()
            if connection.usable:
                return connection
            connection.drop()
        return None

    async def _slot(self) -> None:
        if self._busy < self._limit:
            self._busy += 1
            return
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.freed()  # it was handed on to us while we were being cancelled
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    async def _connect(self) -> Connection:
        sock = await connect(self._host, self._port)
        try:
            _, made = await self._loop.create_connection(
                lambda: Connection(self._loop, self),
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host if self._tls is not None else None,
            )
        except BaseException:
            sock.close()
            raise
        if self._closed or not made.usable:
            made.drop()
            raise Closed if self._closed else ConnectionResetError  # or it spoke before it was asked
        # Not sooner: a loop need not tell a protocol of its end while the connecting has not returned.
        self._open.add(made)
        return made
