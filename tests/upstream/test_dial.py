"""A name with several addresses: a silent or refusing one among them costs a moment, not the call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.dial import Address, alternating, connect
from tests.fakes import BOUND
from tests.upstream.calling import closed_port

V4, V6 = socket.AF_INET, socket.AF_INET6


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes no connection and refuses none: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):
            yield listener.getsockname()[1]


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


def names(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """The name that is asked for has these addresses: ports of this machine stand for machines."""

    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(V4, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


async def test_the_next_address_is_tried_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as port:
        names(monkeypatch, closed_port(), closed_port(), port)
        with closing(await asyncio.wait_for(connect("name", 1), BOUND)) as sock:
            assert sock.getpeername()[1] == port


async def test_the_next_address_is_tried_beside_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as nobody, listening() as port:
        names(monkeypatch, nobody, port)
        with closing(await asyncio.wait_for(connect("name", 1), BOUND)) as sock:
            assert sock.getpeername()[1] == port
    assert await _over()


async def _over() -> bool:
    """The attempts that lost end by themselves."""
    async with asyncio.timeout(BOUND):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
    return True


async def test_the_failure_of_the_last_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, closed_port(), closed_port())
    with pytest.raises(ConnectionRefusedError):
        await asyncio.wait_for(connect("name", 1), BOUND)


async def test_a_cancelled_race_leaves_no_attempt_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as one, silent() as other:
        names(monkeypatch, one, other)
        task = asyncio.create_task(connect("name", 1))
        async with asyncio.timeout(BOUND):
            while len(asyncio.all_tasks()) < 4:  # this test, the race, two attempts
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await _over()


async def test_probes_keep_a_silent_connection_known() -> None:
    with listening() as port, closing(await connect("127.0.0.1", port)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 64 + ".invalid", "\ud800.invalid"])
async def test_a_name_that_is_none_is_a_failed_look_up(name: str) -> None:
    with pytest.raises(socket.gaierror):
        await connect(name, 80)


addresses = st.lists(st.tuples(st.sampled_from([V4, V6]), st.integers(0, 99)), min_size=1, unique=True)


@given(addresses)
def test_families_alternate_and_nothing_is_lost(found: list[Address]) -> None:
    ordered = alternating(found)
    assert sorted(ordered) == sorted(found)
    assert ordered[0] == found[0]
    for family in (V4, V6):
        assert [a for a in ordered if a[0] == family] == [a for a in found if a[0] == family]
    fewer = min(sum(a[0] == family for a in found) for family in (V4, V6))
    turns = [address[0] for address in ordered[: 2 * fewer]]
    assert all(one != other for one, other in pairwise(turns))
