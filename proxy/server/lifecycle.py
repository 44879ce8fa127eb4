"""From the first byte listened for to the exit code: start, announce, drain.

Belongs here: signals, the listening socket, the order in which a server that leaves lets go. Never: what is served.

    serving --SIGTERM--> leaving (not ready, still accepting) --drain_delay--> closed (finishing what was let in)
            --drain or a second signal--> ending (streams are told to end) --grace--> cut

A load balancer needs a while to notice that we are not ready; a server that shuts its door on SIGTERM, as uvicorn does,
refuses what is sent to it meanwhile (research/reliability.md 0.5, T-50). The ends of streams that had to be cut are
error frames, never a silence that looks like an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp

from proxy.core.errors import ShuttingDown
from proxy.server.allocator import keep_freed_memory
from proxy.server.fence import Fence
from proxy.server.guard import Guard, GuardedProtocol, Limits, Phase
from proxy.server.overload import Overload

_log = logging.getLogger(__name__)

_POLL = 0.05
_LATE = 5.0
"""Seconds in which whoever stands at the door when it is closed is let in, and in which he says what he wants: a busy
loop takes in one in each of its turns."""
_SILENT = 1.0
"""Seconds since it was let in for which a connection that has said nothing is expected to: after that it was opened in
advance, by a browser or a probe."""
_YOUNG = 10_000
"""Objects made and not freed between two looks of the collector: a hundred calls under way have so many, all in use."""
_UNSENT = 16 * 1024
"""Bytes that wait in the kernel for a connection at most, beside what is on its way."""

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python does not name."""
_RETURN = 0x06
"""BPF_RET: a program of this one instruction, with 0 as its number of bytes, lets nothing through."""


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, and how long leaving may take, in seconds.

    `port` 0 takes a free one. After SIGTERM the listener stays open for `drain_delay`; running requests then have
    `drain` to finish, and `grace` more to send their error frame and close their rows once they were told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8400
    backlog: int = 2048
    drain_delay: float = 0.0
    drain: float = 300.0
    grace: float = 2.0


class Drain:
    """How far this server is on its way out, and what still runs. Shared by the server and its endpoints.

    `with drain.request():` around each request counts it and refuses it with ShuttingDown once the listener is closed.
    Work that outlives its request (closing a row, a turn whose client left) is counted with `with drain.work():`, which
    never refuses. A stream registers a callback in `at_end` to be told that it must end now.
    """

    def __init__(self) -> None:
        self.ready = True
        """What /readyz answers, beside the store's word. False from the first signal on."""
        self.closed = False
        """The listener is closed: what still comes over kept connections is refused."""
        self.ending = asyncio.Event()
        """Set when what still runs must end at once, with an error frame."""
        self.running = 0
        self.cut = 0
        """How many ran when they were told to end."""
        self._callbacks: set[Callable[[], object]] = set()

    def request(self) -> Drain:
        if self.closed:
            raise ShuttingDown("The gateway is shutting down; send the request again.", retry_after=1.0)
        return self

    def work(self) -> Drain:
        return self

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.running -= 1

    def at_end(self, callback: Callable[[], object]) -> AtEnd:
        """`with` it: call `callback` once if the end comes within the block; at once if it has come already."""
        return AtEnd(callback, self._callbacks, self.ending)

    def end(self) -> None:
        """Tell everything that runs to end. A second call changes nothing."""
        if self.ending.is_set():
            return
        self.ready = False
        self.cut = self.running
        self.ending.set()
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception as bug:
                _log.error("a stream could not be told to end: %s", type(bug).__name__)


class AtEnd:
    """See `Drain.at_end`."""

    __slots__ = ("_callback", "_callbacks", "_ending")

    def __init__(
        self, callback: Callable[[], object], callbacks: set[Callable[[], object]], ending: asyncio.Event
    ) -> None:
        self._callback = callback
        self._callbacks = callbacks
        self._ending = ending

    def __enter__(self) -> None:
        if self._ending.is_set():
            self._callback()
        self._callbacks.add(self._callback)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._callbacks.discard(self._callback)


class Server(uvicorn.Server):
    """uvicorn's server with our way of leaving. `clean` tells afterwards whether everything that ran had finished."""

    def __init__(
        self,
        config: uvicorn.Config,
        listen: Listen,
        guard: Guard,
        drain: Drain,
        *,
        on_reload: Callable[[], None] | None = None,
        announce: Callable[[str, int], None] | None = None,
    ) -> None:
        super().__init__(config)
        self.listen = listen
        self.guard = guard
        self.drain = drain
        self.on_reload = on_reload
        self.announce = announce
        self.clean = True
        self._signals = 0
        self._delay: asyncio.TimerHandle | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        # What is loaded by now stays: the collector need not walk through it with every thousandth call. Not once
        # before, either: that takes longer than making the application, and finds next to nothing.
        gc.freeze()
        gc.set_threshold(_YOUNG)
        gc.enable()
        if self.started and self.announce is not None and sockets:
            host, port = sockets[0].getsockname()[:2]
            self.announce(host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Ours run in the loop, so readiness changes between two requests; and we exit with a code, not by a signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self.leave,
            signal.SIGINT: self.leave,
            signal.SIGHUP: self._reload,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def leave(self) -> None:
        """A signal to stop. The first one drains; the second ends what runs, with error frames; the third cuts it."""
        self._signals += 1
        self.drain.ready = False
        self.guard.leaving = True
        if self._signals == 1:
            _log.info("leaving: not ready, still accepting for %.1f s", self.listen.drain_delay)
            self._delay = asyncio.get_running_loop().call_later(self.listen.drain_delay, self._close_the_door)
            return
        self._close_the_door()
        self.drain.end()
        if self._signals > 2:
            self.force_exit = True

    def _close_the_door(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
        self.should_exit = True

    def _reload(self) -> None:
        if self.on_reload is None:
            return
        try:
            self.on_reload()
        except Exception as bug:
            _log.error("the reload failed: %s", type(bug).__name__)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let what runs finish, then the application. Replaces uvicorn's, which ends without a word."""
        self.drain.ready = False
        self.guard.leaving = True
        await self._let_in_the_last(sockets or ())
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        await self._hear_out()
        self.drain.closed = True
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        if not await self._idle(self.listen.drain, until_told=True):
            self.clean = False
            self.drain.end()
            await self._idle(self.listen.grace)
            await self._cut()
        self.clean = self.clean and self.drain.cut == 0
        await self.lifespan.shutdown()

    async def _let_in_the_last(self, listeners: Sequence[socket.socket]) -> None:
        """Take in whoever stands in the queue: the kernel cuts those off whose listener is closed."""
        for listener in listeners:
            let_nobody_queue(listener)
        await self._until(lambda: not any(map(queued, listeners)), pause=0)
        await asyncio.sleep(0)  # those who were taken in last are made connections of

    async def _hear_out(self) -> None:
        """Read the requests of those who were let in last: a balancer sends none again whose connection breaks."""
        lines, clock = self.guard.connections, asyncio.get_running_loop().time
        await self._until(lambda: not any(_expected(line, clock()) for line in lines), pause=_POLL)
        await asyncio.sleep(0)  # what was read last is begun

    async def _until(self, true: Callable[[], bool], *, pause: float) -> None:
        """For _LATE seconds at most."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _LATE
        while not true() and clock() < deadline and not self.force_exit and not self.drain.ending.is_set():
            await asyncio.sleep(pause)

    async def _idle(self, seconds: float, *, until_told: bool = False) -> bool:
        """Wait until nothing runs and every answer has been taken; False if that is not so within `seconds`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while self.server_state.connections or self.server_state.tasks or self.drain.running:
            if clock() >= deadline or self.force_exit or (until_told and self.drain.ending.is_set()):
                return False
            await asyncio.sleep(_POLL)
        return True

    async def _cut(self) -> None:
        tasks = tuple(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        for connection in tuple(self.guard.connections):
            connection.wire.abort()
        if tasks:
            _log.error("cut %d requests that did not end when they were told to", len(tasks))
            await asyncio.wait(tasks, timeout=max(self.listen.grace, _POLL))


def serve(
    app: ASGIApp,
    listen: Listen,
    limits: Limits,
    drain: Drain,
    *,
    on_reload: Callable[[], None] | None = None,
    announce: Callable[[str, int], None] | None = None,
    guard: Guard | None = None,
    overload: Overload | None = None,
) -> int:
    """Serve `app` until a signal; return the exit code: 0 after a clean drain, 1 where running requests were cut.

    `announce(host, port)` is called once the address is bound and the application has started; `on_reload` on SIGHUP;
    neither may block. Pass a `guard` made by `guard_for(limits)` to read its counters; `overload`
    says when calls are refused unread. Raises OSError where the address
    cannot be bound, before the application starts. To be called in the main thread, once per process.
    """
    keep_freed_memory()
    watch = guard if guard is not None else guard_for(limits)
    watch.overload = overload
    bound = bind(listen.host, listen.port)
    try:
        config = uvicorn.Config(Fence(app), **_uvicorn_settings(listen, watch))
        server = Server(config, listen, watch, drain, on_reload=on_reload, announce=announce)
        uvloop.run(server.serve(sockets=[bound]))
    finally:
        bound.close()
    return 0 if server.clean else 1


def _uvicorn_settings(listen: Listen, guard: Guard) -> dict[str, Any]:
    return {
        "http": guard.protocol,
        "loop": "uvloop",
        "ws": "none",
        "interface": "asgi3",
        "lifespan": "on",
        # Our own log lines name no path with a query and no key; uvicorn's set-up would replace the handlers.
        "log_config": None,
        "access_log": False,
        "server_header": False,
        # X-Forwarded-For is believed nowhere, so nobody can claim an address with it.
        "proxy_headers": False,
        "backlog": listen.backlog,
    }


def guard_for(limits: Limits) -> Guard:
    """A guard whose cap on connections leaves file descriptors for the upstreams and the store.

    The soft limit on open files is raised to the hard one first. A stream takes two descriptors, ours and the
    upstream's, so half of what there is goes to clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return Guard(limits)
    most = max(8, (soft - 64) * 7 // 16)
    return Guard(msgspec.structs.replace(limits, connections=min(limits.connections, most)))


def _expected(line: GuardedProtocol, now: float) -> bool:
    """Whether the first request of this connection is still to come, or on its way."""
    if line.served or line.phase >= Phase.READ:
        return False
    return line.phase is not Phase.IDLE or now - line.since < _SILENT


def let_nobody_queue(listener: socket.socket) -> None:
    """Whoever knocks from now on hears nothing; a second later he knocks again, at a door that is closed. So nobody
    enters the queue between our last look and the closing. Linux only; elsewhere that gap stays."""
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def queued(listener: socket.socket) -> bool:
    """Whether somebody has knocked and was not let in yet."""
    looking = select.poll()
    looking.register(listener, select.POLLIN)
    return bool(looking.poll(0))


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening: nobody waits in a queue while the application starts."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Accepted sockets inherit it. Without it the kernel takes megabytes for a client that has stopped reading,
            # and we, too, keep what was said to it until its end.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
