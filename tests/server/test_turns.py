"""Long work leaves others their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from proxy.server.turns import in_turns


async def test_others_have_a_turn_between_two_steps() -> None:
    order: list[str] = []

    def work() -> Generator[None, None, str]:
        for number in range(3):
            order.append(f"step {number}")
            yield
        return "made"

    async def other() -> None:
        for number in range(3):
            order.append(f"other {number}")
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert await in_turns(work()) == "made"
    await beside
    assert order == [f"{who} {number}" for number in range(3) for who in ("step", "other")]


async def test_work_of_one_step_waits_for_nobody() -> None:
    ran: list[bool] = []

    def work() -> Generator[None, None, int]:
        yield from ()
        return 7

    beside = asyncio.create_task(asyncio.sleep(0))
    beside.add_done_callback(lambda _: ran.append(True))
    assert await in_turns(work()) == 7
    assert not ran
    await beside


async def test_what_goes_wrong_in_a_later_step_comes_out() -> None:
    def work() -> Generator[None, None, int]:
        yield
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await in_turns(work())


async def test_a_cancelled_caller_ends_the_work_between_two_steps() -> None:
    steps: list[int] = []

    def work() -> Generator[None, None, None]:
        while True:
            steps.append(len(steps))
            yield

    task = asyncio.create_task(in_turns(work()))
    while len(steps) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    count = len(steps)
    await asyncio.sleep(0)
    assert len(steps) == count
