"""Whose turn it is: the loop's, the worker's, or nobody's behind a client that left."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from proxy.core.errors import ClientLeft, Malformed, TimedOut
from proxy.core.steps import Claim, Flow, Outcome, Recall, Remember, Report, Step
from proxy.playing import Play
from tests.fakes import BOUND

RECALL = Recall(scope=b"", agent="a", label=None, named=False, digests=())
CLAIM = Claim(key=b"branch")
REMEMBER = Remember(scope=b"", agent="a", conversation="c")
DONE = Outcome(report=Report(conversation="c", tokens=1, window=None), reply=None)


class Table:
    """Performs steps by what `answers` says of their kind: a value, an error, or an awaitable that gives one."""

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        self.answers: dict[type, Any] = {}
        self.performed: list[type] = []
        self.concluded = 0
        self._workers = workers
        self._tasks: set[asyncio.Future[Any]] = set()

    def play(self, flow: Flow[Outcome]) -> Play:
        return Play(flow, self.perform, self.spawn, self._workers, self.conclude)

    async def perform(self, step: Step) -> object:
        self.performed.append(type(step))
        answer = self.answers.get(type(step))
        if isinstance(answer, BaseException):
            raise answer
        return await answer if isinstance(answer, Awaitable) else answer

    def spawn(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        future = asyncio.ensure_future(work)  # noqa: TID251  awaited by `settled`
        self._tasks.add(future)
        return future

    def conclude(self) -> None:
        self.concluded += 1

    async def settled(self) -> None:
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def table() -> AsyncIterator[Table]:
    with ThreadPoolExecutor(max_workers=1) as workers:
        yield Table(workers)


async def test_what_follows_on_planning_runs_in_the_worker_and_the_rest_on_the_loop() -> None:
    threads: list[str] = []

    def flow() -> Flow[Outcome]:
        yield from RECALL
        threads.append(threading.current_thread().name)
        yield from CLAIM
        threads.append(threading.current_thread().name)
        yield from REMEMBER
        threads.append(threading.current_thread().name)
        return DONE

    async with table() as there:
        assert await there.play(flow()).run() is DONE
        here = threading.current_thread().name
        assert [name == here for name in threads] == [True, False, True]
        assert there.performed == [Recall, Claim, Remember]


@pytest.mark.parametrize("kind", [Recall, Claim])
async def test_an_error_is_thrown_in_at_the_place_that_asked(kind: type) -> None:
    heard: list[type] = []

    def flow() -> Flow[Outcome]:
        try:
            yield from RECALL if kind is Recall else CLAIM
        except TimedOut as error:
            heard.append(type(error))
        return DONE

    async with table() as there:
        there.answers[kind] = TimedOut("Late.")
        assert await there.play(flow()).run() is DONE
        assert heard == [TimedOut]


async def test_what_the_flow_raises_comes_out_and_no_work_is_left_over() -> None:
    def flow() -> Flow[Outcome]:
        yield from CLAIM
        raise Malformed("No.")

    async with table() as there:
        playing = there.play(flow())
        with pytest.raises(Malformed):
            await playing.run()
        assert not playing.working
        assert there.concluded == 0


async def test_a_flow_that_is_cancelled_on_the_loop_is_closed() -> None:
    closed = asyncio.Event()
    asked = asyncio.Event()

    def flow() -> Flow[Outcome]:
        try:
            yield from RECALL
        finally:
            closed.set()
        return DONE

    async def forever() -> None:
        asked.set()
        await asyncio.Event().wait()

    async with table() as there:
        there.answers[Recall] = forever()
        task = asyncio.create_task(there.play(flow()).run())
        async with asyncio.timeout(BOUND):
            await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed.is_set()
        assert there.concluded == 0


async def test_a_plan_under_way_is_stored_behind_a_client_that_left_and_nothing_more_is_asked() -> None:
    begun, busy = threading.Event(), threading.Event()
    ended: list[str] = []

    def flow() -> Flow[Outcome]:
        yield from CLAIM
        begun.set()
        assert busy.wait(BOUND)
        yield from REMEMBER
        ended.append("stored")
        try:
            yield from RECALL
        finally:
            ended.append("closed")
        return DONE

    async with table() as there:
        there.answers[Recall] = ClientLeft(said=False)
        playing = there.play(flow())
        task = asyncio.create_task(playing.run())
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert playing.alone and playing.working
        busy.set()
        await there.settled()
        assert ended == ["stored", "closed"]
        assert there.concluded == 1 and not playing.working


async def test_a_step_that_plans_may_fail_behind_a_client_that_left() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    def flow() -> Flow[Outcome]:
        yield from CLAIM
        raise AssertionError("nothing follows on an error that is not caught")

    async def failing() -> None:
        asked.set()
        await go.wait()
        raise TimedOut("Late.")

    async with table() as there:
        there.answers[Claim] = failing()
        task = asyncio.create_task(there.play(flow()).run())
        async with asyncio.timeout(BOUND):
            await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await there.settled()
        assert there.concluded == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_who_performs_the_steps_is_free_as_soon_as_the_flow_is_over(fails: bool) -> None:
    """Not when the collector comes by: a call holds its whole body."""

    class Owner(Table):
        playing: Play

    async def refused() -> None:
        raise Malformed("no")

    def asking() -> Flow[Outcome]:
        yield from RECALL
        return DONE

    with ThreadPoolExecutor(max_workers=1) as workers:
        owner = Owner(workers)
        if fails:
            owner.answers[Recall] = refused()
        owner.playing = owner.play(asking())
        gone = weakref.ref(owner)
        gc.disable()
        try:
            with pytest.raises(Malformed) if fails else nullcontext():
                await owner.playing.run()
            del owner
            assert gone() is None
        finally:
            gc.enable()
