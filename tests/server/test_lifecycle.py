"""How the server starts, and above all how it leaves: what runs finishes, what must end says so."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from proxy.core.errors import ShuttingDown
from proxy.server.allocator import keep_freed_memory
from proxy.server.guard import Limits
from proxy.server.lifecycle import Drain, Listen, bind, guard_for
from tests.server.child import Order
from tests.server.wire import BOUND, Answer, Peer, get

ROOT = Path(__file__).parents[2]
STREAMS = 25


class Child:
    """The server process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.cap = 0
        self.peers: list[Peer] = []

    async def said(self, *, within: float = 30) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def code(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.process.wait()

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        return peer

    async def ask(self, path: str) -> Answer:
        peer = await self.connect()
        await peer.send(get(path))
        return await peer.answer()

    async def stream(self, path: str = "/stream", *headers: str) -> Peer:
        """A stream whose first frame has arrived."""
        peer = await self.connect()
        await peer.send(get(path, *headers))
        async with asyncio.timeout(BOUND):
            await peer.reader.readuntil(b"data: 1\n\n\r\n")
        return peer

    async def not_ready(self) -> None:
        async with asyncio.timeout(BOUND):
            while (await self.ask("/readyz")).status != 503:
                pass

    async def refusing(self) -> None:
        """Wait until nobody listens any more."""
        async with asyncio.timeout(BOUND):
            with contextlib.suppress(ConnectionError):
                while True:
                    (await self.connect()).writer.close()


@contextlib.asynccontextmanager
async def running(order: Order, *, announced: bool = True) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.server.child",
        msgspec.json.encode(order).decode(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    child = Child(process)
    try:
        if announced:
            _, port, cap = (await child.said()).split()
            child.port, child.cap = int(port), int(cap)
        yield child
    finally:
        for peer in child.peers:
            peer.writer.transport.abort()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def leaving(**seconds: float) -> Order:
    return Order(listen=Listen(port=0, **seconds))  # type: ignore[arg-type]


async def test_running_streams_finish_after_sigterm_and_the_exit_is_clean() -> None:
    async with running(leaving(drain=60)) as child:
        streams = [await child.stream() for _ in range(STREAMS)]
        child.signal(signal.SIGTERM)
        await child.refusing()
        assert all([await peer.quiet(0) for peer in streams])
        child.signal(signal.SIGUSR1)
        ends = [await peer.rest() for peer in streams]
        assert ends == [b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"] * STREAMS
        assert await child.said() == "closing 0 True"
        assert await child.code() == 0


async def test_readiness_flips_at_once_and_new_calls_are_served_while_the_door_stays_open() -> None:
    async with running(leaving(drain_delay=60, drain=60)) as child:
        kept = await child.connect()
        await kept.send(get("/quick"))
        assert "connection" not in (await kept.answer()).headers
        stream = await child.stream()
        assert (await child.ask("/readyz")).status == 200
        child.signal(signal.SIGTERM)
        await child.not_ready()
        fresh = await child.ask("/quick")
        assert (fresh.body, fresh.headers["connection"]) == (b"quick", "close")
        await kept.send(get("/quick"))
        last = await kept.answer()
        assert (last.body, last.headers["connection"]) == (b"quick", "close")
        assert await stream.quiet(0.5)
        assert (await child.ask("/quick")).body == b"quick"


async def test_the_door_closes_after_the_delay() -> None:
    async with running(leaving(drain_delay=0.3)) as child:
        child.signal(signal.SIGTERM)
        await child.refusing()
        assert await child.code() == 0


async def test_streams_that_outlast_the_drain_end_with_an_error_frame_and_never_with_done() -> None:
    async with running(leaving(drain=0.2, grace=5)) as child:
        streams = [await child.stream() for _ in range(STREAMS)]
        child.signal(signal.SIGTERM)
        for peer in streams:
            end = await peer.rest()
            assert b'"code":"shutting_down"' in end
            assert end.endswith(b"\r\n0\r\n\r\n")
            assert b"[DONE]" not in end
        assert await child.said() == "closing 0 True"
        assert await child.code() == 1


async def test_a_second_signal_ends_what_runs_at_once() -> None:
    async with running(leaving(drain_delay=60, drain=60, grace=5)) as child:
        stream = await child.stream("/stream", "Connection: close")
        child.signal(signal.SIGTERM)
        await child.not_ready()
        for peer in child.peers:
            if peer is not stream:
                peer.writer.close()
                await peer.writer.wait_closed()
        child.signal(signal.SIGINT)
        assert b'"code":"shutting_down"' in await stream.rest()
        assert await child.code() == 1


async def test_a_request_that_does_not_end_when_told_is_cut_and_the_exit_says_so() -> None:
    async with running(leaving(drain=0.1, grace=0.1)) as child:
        stream = await child.stream("/stubborn")
        child.signal(signal.SIGTERM)
        assert b"0\r\n\r\n" not in await stream.rest_or_reset()
        assert await child.said() == "closing 0 True"
        assert await child.code() == 1


async def test_a_request_that_was_on_its_way_when_the_door_closed_is_answered() -> None:
    async with running(leaving(drain=60)) as child:
        late = await child.connect()
        request = get("/quick")
        await late.send(request[:20])
        assert (await child.ask("/quick")).status == 200
        child.signal(signal.SIGTERM)
        await child.refusing()
        await late.send(request[20:])
        answer = await late.answer()
        assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"quick", "close")
        assert await child.code() == 0


async def test_a_request_that_takes_longer_than_a_moment_is_told_to_go_elsewhere() -> None:
    async with running(leaving(drain=60)) as child:
        kept, late = await child.connect(), await child.connect()
        request = get("/quick")
        await late.send(request[:20])
        await kept.send(request)
        assert (await kept.answer()).status == 200
        child.signal(signal.SIGTERM)
        assert await kept.gone()  # who has been heard before need not be heard out
        await late.send(request[20:])
        answer = await late.answer()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["connection"] == "close"
        assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "1")
        assert await child.code() == 0


async def test_idle_connections_do_not_hold_the_exit_up() -> None:
    async with running(leaving(drain=60)) as child:
        kept, silent = await child.connect(), await child.connect()
        await kept.send(get("/quick"))
        assert (await kept.answer()).body == b"quick"
        child.signal(signal.SIGTERM)
        assert await kept.gone()
        assert await silent.gone()
        assert await child.code() == 0


async def test_a_connection_that_never_said_anything_is_not_heard_out_as_long_as_one_that_began_to() -> None:
    async with running(leaving(drain=60)) as unspoken, running(leaving(drain=60)) as speaking:
        silent, late = await unspoken.connect(), await speaking.connect()
        request = get("/quick")
        await late.send(request[:20])
        for child in (speaking, unspoken):
            assert (await child.ask("/quick")).status == 200
            child.signal(signal.SIGTERM)
            await child.refusing()
        assert await silent.gone()
        assert await unspoken.code() == 0
        await late.send(request[20:])
        assert (await late.answer()).status == 200


async def test_work_that_outlives_its_request_is_waited_for_before_the_application_closes() -> None:
    async with running(msgspec.structs.replace(leaving(drain=60), background=True)) as child:
        child.signal(signal.SIGTERM)
        await child.refusing()
        with pytest.raises(TimeoutError):
            await child.said(within=0.4)
        child.signal(signal.SIGUSR1)
        assert await child.said() == "closing 0 True"
        assert await child.code() == 0


async def test_sighup_reloads_and_a_reload_that_fails_changes_nothing() -> None:
    async with running(leaving()) as child:
        stream = await child.stream()
        for number in (1, 2):
            child.signal(signal.SIGHUP)
            assert await child.said() == f"reload {number}"
        assert (await child.ask("/readyz")).status == 200
        assert await stream.quiet(0)
        child.process.kill()
        assert child.process.stderr is not None
        log = await child.process.stderr.read()
        assert b"the reload failed: ValueError" in log
        assert b"the first one fails" not in log


async def test_a_start_that_fails_announces_nothing_and_exits_with_an_error() -> None:
    async with running(msgspec.structs.replace(leaving(), fail=True), announced=False) as child:
        assert await child.said() == ""
        assert await child.code() != 0


async def test_the_server_lives_through_more_connections_than_files() -> None:
    async with running(msgspec.structs.replace(leaving(), files=256)) as child:
        assert 8 <= child.cap <= 100
        crowd = [await child.connect() for _ in range(300)]
        for peer in crowd[child.cap :]:
            said = await peer.rest_or_reset()
            assert said == b"" or said.startswith(b"HTTP/1.1 429 ")
        for peer in crowd:
            peer.writer.transport.abort()
        async with asyncio.timeout(BOUND):
            while True:
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    if (await child.ask("/quick")).body == b"quick":
                        break


def test_an_address_in_use_is_an_error_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])
    with bind("127.0.0.1", 0) as bound:
        assert bound.getsockname()[1] > 0


def test_a_drain_counts_what_runs_and_refuses_once_it_is_closed() -> None:
    drain = Drain()
    with drain.request(), drain.work():
        assert drain.running == 2
    with pytest.raises(ZeroDivisionError), drain.request():
        raise ZeroDivisionError
    assert drain.running == 0
    drain.closed = True
    with pytest.raises(ShuttingDown) as refusal:
        drain.request()
    assert (refusal.value.status, refusal.value.retry) == (503, True)
    with drain.work():
        assert drain.running == 1


def test_the_end_is_told_once_to_those_that_still_run_and_at_once_to_latecomers() -> None:
    drain = Drain()
    told: list[str] = []

    def broken() -> None:
        raise ZeroDivisionError

    with drain.at_end(lambda: told.append("gone")):
        pass
    with drain.request(), drain.at_end(broken), drain.at_end(lambda: told.append("running")):
        drain.end()
        drain.end()
    with drain.at_end(lambda: told.append("late")):
        pass
    assert told == ["running", "late"]
    assert drain.ending.is_set()
    assert (drain.ready, drain.cut) == (False, 1)


def test_the_cap_on_connections_is_never_raised() -> None:
    assert guard_for(Limits(connections=3)).limits.connections == 3


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_glibc_takes_the_settings() -> None:
    assert keep_freed_memory()
