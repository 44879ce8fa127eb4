"""Too much to do: the bound on what is served follows what the loop can carry, and the excess is refused unread."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.counted import Count
from proxy.server.guard import Limits
from proxy.server.overload import Overload, adjusted
from tests.server.wire import Peer, Small, get, guarded, post

CALL = "/v1/chat/completions"


def full(most: int = 1) -> Overload:
    """One that serves as many as it can."""
    overload = Overload(most, Count())
    overload.serving = most
    return overload


# -- the bound -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=200))
def test_the_bound_stays_within_what_is_configured_and_comes_back(most: int, looks: list[tuple[int, bool]]) -> None:
    limit = most
    for serving, late in looks:
        before, limit = limit, adjusted(limit, min(serving, limit), most, late=late)
        assert min(64, most) <= limit <= most
        assert limit <= max(before, 64) if late else limit >= before
    for _ in range(1000):
        limit = adjusted(limit, 0, most, 0.0)
    assert limit == most


def test_while_the_loop_is_late_it_falls_below_what_is_served() -> None:
    limit = 500
    for _ in range(8):
        limit = adjusted(limit, min(limit, 200), 500, 0.03)
    assert limit < 100


async def test_long_pieces_of_work_lower_nothing_and_a_row_of_them_does() -> None:
    overload = Overload(500, Count())
    overload.serving = 100
    overload.watch()

    def looks(count: int, late: float) -> None:
        for _ in range(count):
            overload._due -= 1.0 * late
            overload._look()

    for _ in range(20):
        looks(1, late=True)
        looks(9, late=False)
    assert overload.limit == 500
    looks(2, late=True)
    assert overload.limit == 500
    looks(1, late=True)
    assert overload.limit == 90
    overload.serving = 0
    looks(500, late=False)
    assert overload.limit == 500 and not overload.watched  # nobody looks at an idle loop


async def test_a_loop_that_is_kept_busy_is_found_to_be_late() -> None:
    overload = Overload(500, Count())
    overload.serving = 100
    overload.watch()
    async with asyncio.timeout(10):
        while overload.limit == 500:
            until = time.monotonic() + 0.06
            while time.monotonic() < until:
                pass  # what keeps the loop busy
            await asyncio.sleep(0)


# -- refusing --------------------------------------------------------------------------------------------------------


async def test_a_call_too_many_is_refused_and_its_connection_stays() -> None:
    app = Small()
    async with guarded(app, Limits()) as (connect, guard):
        guard.overload = full()
        peer = await connect()
        for number in range(3):
            await peer.send(post(CALL, b"x" * 1000))
            answer = await peer.answer()
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
            assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
            assert "connection" not in answer.headers
            assert guard.overload.shed.value == guard.refused["queue_full"] == number + 1
        guard.overload.serving = 0
        await peer.send(post(CALL, b"now"))
        assert (await peer.answer()).body != b""


async def test_it_is_refused_before_its_body_is_there() -> None:
    async with guarded(Small(), Limits()) as (connect, guard):
        guard.overload = full()
        peer = await connect()
        head, _, body = post(CALL, b"x" * 1000).partition(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n")
        assert (await peer.answer()).status == 429
        await peer.send(body + get("/healthz"))
        assert (await peer.answer()).body == b"/healthz"


@pytest.mark.parametrize(
    "request_",
    [
        post(CALL, b"x" * 100_000)[:2000],
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\nHost: h\r\nContent-Length: 9\r\n\r\nnine byte",
    ],
)
async def test_where_the_body_is_large_or_of_unknown_size_the_connection_ends(request_: bytes) -> None:
    async with guarded(Small(), Limits()) as (connect, guard):
        guard.overload = full()
        peer: Peer = await connect()
        await peer.send(request_)
        answer = await peer.answer()
        assert (answer.status, answer.headers["connection"]) == (429, "close")
        assert await peer.gone()


async def test_probes_and_operators_are_answered_all_the_same() -> None:
    async with guarded(Small(), Limits()) as (connect, guard):
        guard.overload = full()
        peer = await connect()
        for path in ("/healthz", "/metrics", "/v1/weirgate/upstreams"):
            await peer.send(get(path))
            assert (await peer.answer()).body == path.encode()


async def test_who_waits_behind_another_on_one_connection_is_the_applications_to_refuse() -> None:
    async with guarded(Small(), Limits()) as (connect, guard):
        guard.overload = full()
        peer = await connect()
        await peer.send(post(CALL, b"one") + get("/healthz") + post(CALL, b"two"))
        assert [(await peer.answer()).status for _ in range(3)] == [429, 200, 200]


async def test_heads_that_come_in_one_turn_of_the_loop_are_counted_before_their_calls_have_places() -> None:
    overload = Overload(5, Count())
    overload.serving = 3
    assert [overload.sheds(CALL.encode()) for _ in range(4)] == [False, False, True, True]
    assert not overload.sheds(b"/healthz")
    await asyncio.sleep(0)  # none of them took a place
    assert [overload.sheds(CALL.encode()) for _ in range(3)] == [False, False, True]
    assert overload.shed.value == 3
