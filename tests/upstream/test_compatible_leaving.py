"""Whoever leaves, the provider sees it at once and the pool goes on; and all of it on the loop of production."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

import pytest
import uvloop

from proxy.core.errors import InvalidReply, Unreachable
from proxy.upstream import Request
from proxy.upstream.compatible import CompatibleUpstream
from tests.fakes import Script, ScriptedUpstream, SeenRequest, by_model
from tests.upstream import test_compatible as good
from tests.upstream import test_compatible_faults as faults
from tests.upstream.calling import (
    CALL,
    answer,
    cancelled,
    client,
    pair,
    pieces,
    streamed,
    whole,
)


async def test_a_cancelled_call_closes_its_connection_at_every_stage() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        if request.model == "head":
            await reply.head(200)
        elif request.model == "body":
            await reply.head(200)
            await reply.event({"n": 1})
        await reply.hang()

    async with pair(stall) as (up, upstream):
        for model in ("none", "head", "body"):
            body = f'{{"model":"{model}"}}'.encode()
            task = asyncio.create_task(streamed(upstream, Request(path="/x", body=body)))
            entry = await up.arrived(len(up.ledger) + 1)
            await cancelled(task)
            await asyncio.wait_for(entry.gone.wait(), 1.0)
            await up.idle(connections=0)
            assert upstream.in_flight == 0


async def test_a_read_that_is_cancelled_closes_the_connection_even_if_nobody_calls_close() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.hang()

    async with pair(stall) as (up, upstream):
        response = await upstream.send(CALL)
        reads = asyncio.Event()

        async def read() -> bytes:
            reads.set()
            return await response.read()

        task = asyncio.create_task(read())
        await reads.wait()
        await cancelled(task)
        await asyncio.wait_for(up.ledger[0].gone.wait(), 1.0)
        assert upstream.in_flight == 0


async def test_an_abandoned_answer_is_closed_and_never_read_by_the_next_call() -> None:
    async def mine(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.write(f"canary-{request.model}-one".encode())
        if request.model == "a":
            await reply.hang()
        await reply.end()

    async with pair(mine, max_connections=1) as (up, upstream):
        response = await upstream.send(Request(path="/x", body=b'{"model":"a"}'))
        assert b"canary-a" in await anext(pieces(response))
        await response.close()
        await response.close()
        assert await whole(upstream, Request(path="/x", body=b'{"model":"b"}')) == b"canary-b-one"
        assert up.connections == 2


async def test_a_call_whose_body_is_not_taken_can_be_cancelled_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4)
        listener.setblocking(False)
        async with client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1") as upstream:
            call = Request(path="/chat/completions", body=b"x" * 32_000_000)
            task = asyncio.create_task(upstream.send(call))
            accepted, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), 5)
            with accepted:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(loop.sock_recv(accepted, 1024), 5)
                await cancelled(task)
                # A socket that were still flushing would deliver all of it.
                taken = 0
                with suppress(ConnectionResetError):
                    while data := await asyncio.wait_for(loop.sock_recv(accepted, 1 << 20), 5):
                        taken += len(data)
                assert taken < 24_000_000


async def test_closing_ends_calls_under_way_and_can_be_done_twice() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        if request.model == "head":
            await reply.head(200)
        await reply.hang()

    async with pair(stall, max_connections=2) as (up, upstream):
        response = await upstream.send(Request(path="/x", body=b'{"model":"head"}'))
        reading = asyncio.create_task(response.read())
        sending = asyncio.create_task(upstream.send(CALL))
        await up.arrived(2)
        waiting = asyncio.create_task(upstream.send(CALL))
        await asyncio.gather(upstream.close(), upstream.close())
        for task, kind in ((reading, InvalidReply), (sending, Unreachable), (waiting, Unreachable)):
            with pytest.raises(kind):
                await task
        with pytest.raises(Unreachable, match="shut down") as caught:
            await upstream.send(CALL)
        assert not caught.value.sent
        await up.idle(connections=0)


async def test_closing_refuses_who_waits_for_a_connection_instead_of_cancelling_it() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with pair(hang, max_connections=1) as (up, upstream):
        sending = asyncio.create_task(upstream.send(CALL))
        await up.arrived()
        waits = asyncio.Event()

        async def wait() -> None:
            waits.set()
            await upstream.send(CALL)

        waiting = asyncio.create_task(wait())
        await waits.wait()
        await upstream.close()
        with pytest.raises(Unreachable, match="shut down") as caught:
            await waiting
        assert not caught.value.sent
        with pytest.raises(Unreachable) as ended:
            await sending
        assert ended.value.sent


async def test_closing_works_while_being_cancelled() -> None:
    async with ScriptedUpstream(answer) as up:
        upstream = CompatibleUpstream(name="main", base_url=up.url)
        waiting = asyncio.Event()

        async def serve() -> None:
            try:
                await whole(upstream)
                waiting.set()
                await asyncio.Event().wait()
            finally:
                closing = asyncio.create_task(upstream.close())
                closing.cancel()
                await upstream.close()

        task = asyncio.create_task(serve())
        await waiting.wait()
        await cancelled(task)
        await up.idle(connections=0)


async def test_an_upstream_that_was_never_used_closes() -> None:
    upstream = CompatibleUpstream(name="main", base_url="http://127.0.0.1:9/v1")
    await upstream.close()


async def test_twenty_workers_that_cancel_at_random_leave_a_pool_that_works() -> None:
    """reliability.md T-24. The httpx pool is dead after this."""
    seed = random.Random(7)

    async def slowly(request: SeenRequest, reply: Script) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(reply.entry.gone.wait(), seed.random() * 0.1)
        await reply.head(200)
        for n in range(3):
            await reply.event({"n": n})
            with suppress(TimeoutError):
                await asyncio.wait_for(reply.entry.gone.wait(), seed.random() * 0.03)
        await reply.end()

    outcomes = {"cancelled": 0, "done": 0}

    async def churn(upstream: CompatibleUpstream, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            task = asyncio.create_task(streamed(upstream, Request(path="/x", body=b'{"model":"slow"}')))
            loop.call_later(seed.random() * 0.15, task.cancel)
            try:
                await task
                outcomes["done"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1

    handler = by_model({"slow": slowly}, answer)
    async with pair(handler, max_connections=10) as (up, upstream):
        before = asyncio.all_tasks()
        until = asyncio.get_running_loop().time() + 2.0
        async with asyncio.timeout(30):
            await asyncio.gather(*(churn(upstream, until) for _ in range(20)))
        assert upstream.in_flight == 0
        assert outcomes["cancelled"] > 100
        answers = await asyncio.gather(*(whole(upstream) for _ in range(100)))
        assert all(b"Hello" in body for body in answers)
        await up.idle(connections=10)
        leaked = [task for task in asyncio.all_tasks() - before if not task.done() and "compatible" in repr(task)]
        assert (upstream.in_flight, leaked) == (0, [])
    assert up.open == 0


SCENARIOS: list[Callable[[], Coroutine[object, object, None]]] = [
    good.test_a_stream_arrives_as_it_is_sent,
    good.test_connections_are_kept_and_used_again,
    good.test_an_answer_that_comes_before_the_body_was_read_is_still_the_answer,
    faults.test_a_refused_connection_was_not_sent,
    faults.test_an_unknown_host_was_not_sent,
    faults.test_a_failed_tls_handshake_was_not_sent,
    faults.test_a_connection_that_is_never_accepted_ends_at_the_connect_deadline,
    faults.test_a_kept_connection_that_turns_out_closed_is_reported_as_sent_and_not_repeated,
    faults.test_silence_ends_at_the_first_byte_deadline_and_the_provider_sees_the_close,
    faults.test_the_total_deadline_also_holds_while_nothing_reads,
    faults.test_a_body_that_only_the_end_of_the_connection_ends_is_whole,
    faults.test_an_endless_body_is_cut_at_the_limit_and_what_was_buffered_is_bounded,
    test_a_cancelled_call_closes_its_connection_at_every_stage,
    test_an_abandoned_answer_is_closed_and_never_read_by_the_next_call,
    test_a_call_whose_body_is_not_taken_can_be_cancelled_at_once,
    test_closing_ends_calls_under_way_and_can_be_done_twice,
    test_closing_refuses_who_waits_for_a_connection_instead_of_cancelling_it,
    test_closing_works_while_being_cancelled,
    test_twenty_workers_that_cancel_at_random_leave_a_pool_that_works,
    *(partial(faults.test_a_body_that_breaks_off_never_looks_whole, whole, cut) for cut in faults.CUTS),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: getattr(scenario, "__name__", "cut"))
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    """What a reset, an abort or a flush does is the loop's own affair, and production runs on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
