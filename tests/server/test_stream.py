"""The client's side of one call, without an application: what is sent when, and the watch on who is still there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.core.errors import ClientLeft, Malformed, ShuttingDown
from proxy.core.steps import Report
from proxy.server.stream import Answering, Watch, Watches

BOUND = 5.0


class Wire:
    """Takes what is sent. `stalled` makes it wait, like a client that does not read."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, message: Any) -> None:
        await self.open.wait()
        self.sent.append(message)
        self.arrived.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def types(self) -> list[str]:
        return [message["type"].removeprefix("http.response.") for message in self.sent]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()


def answering(wire: Wire, hold: float = 60.0, ping: float = 60.0) -> Answering:
    return Answering(wire, "req_1", hold=hold, ping=ping)


async def written(one: Answering, data: bytes) -> None:
    await one.write(data)


REPORT = Report(conversation="conv_1", tokens=6120, window=8192, compaction="auto")


async def test_the_head_goes_out_with_the_first_part_and_says_what_is_known() -> None:
    wire = Wire()
    one = answering(wire)
    one.tell(REPORT)
    assert not one.begun and wire.sent == []
    await one.write(b"data: 1\n\n")
    await one.end((b"data: 2\n\n", b"data: [DONE]\n\n"))
    assert wire.types == ["start", "body", "body"]
    headers = dict(wire.sent[0]["headers"])
    assert headers[b"x-weirgate-context"] == b"tokens=6120; window=8192; compaction=auto"
    assert headers[b"x-weirgate-conversation"] == b"conv_1" and headers[b"x-request-id"] == b"req_1"
    assert b"x-weirgate-repaired" not in headers and b"x-weirgate-max-output" not in headers
    assert wire.body == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert [message.get("more_body") for message in wire.sent] == [None, True, False]


async def test_repairs_and_a_lowered_output_are_told() -> None:
    one = answering(Wire())
    one.tell(Report(conversation="c", tokens=1, window=None, repaired=2, output=64))
    headers = dict(one.headers())
    assert headers[b"x-weirgate-repaired"] == b"2" and headers[b"x-weirgate-max-output"] == b"64"
    assert headers[b"x-weirgate-context"] == b"tokens=1; window=unknown; compaction=none"


async def test_a_short_stream_has_its_head_before_its_end() -> None:
    wire = Wire()
    await answering(wire).end((b"data: [DONE]\n\n",))
    assert wire.types == ["start", "body"] and wire.sent[0]["status"] == 200


async def test_comments_begin_after_the_hold_and_keep_coming_until_it_ends() -> None:
    wire = Wire()
    one = answering(wire, hold=0, ping=0.001)
    one.hold()
    await wire.until(4)
    await one.end((b"data: [DONE]\n\n",))
    count = len(wire.sent)
    assert all(message["body"].startswith(b": ") for message in wire.sent[1:-1])
    assert wire.sent[-1]["body"] == b"data: [DONE]\n\n"
    loop = asyncio.get_running_loop()
    turned: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.01, turned.set_result, None)
    await turned
    assert len(wire.sent) == count, "a comment after the end"


async def test_a_stream_that_speaks_gets_no_comment_in_between() -> None:
    wire = Wire()
    one = answering(wire, hold=0, ping=60)
    await one.write(b"data: 1\n\n")
    one.hold()
    loop = asyncio.get_running_loop()
    turned: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.01, turned.set_result, None)
    await turned
    await one.end((b"data: [DONE]\n\n",))
    assert wire.body == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_client_that_has_still_to_take_what_is_said_gets_no_comment() -> None:
    wire = Wire()
    one = answering(wire, hold=0, ping=0.001)
    wire.open.clear()
    saying = asyncio.create_task(written(one, b"data: 1\n\n"))
    one.hold()
    loop = asyncio.get_running_loop()
    turned: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.01, turned.set_result, None)
    await turned
    wire.open.set()
    async with asyncio.timeout(BOUND):
        await saying
    assert wire.types == ["start", "body"] and wire.body == b"data: 1\n\n"
    await wire.until(3)
    await one.stop()
    assert wire.sent[2]["body"] == b": ping\n\n"


async def test_what_is_said_while_a_comment_is_on_its_way_comes_behind_it() -> None:
    wire = Wire()
    one = answering(wire, hold=0, ping=60)
    wire.open.clear()
    one.hold()
    loop = asyncio.get_running_loop()
    turned: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.01, turned.set_result, None)
    await turned
    saying = asyncio.create_task(written(one, b"data: 1\n\n"))
    wire.open.set()
    async with asyncio.timeout(BOUND):
        await saying
    assert wire.types == ["start", "body", "body"]
    assert wire.body.startswith(b": ") and wire.body.endswith(b"\n\ndata: 1\n\n")


async def test_a_failure_ends_the_stream_with_a_frame_and_never_done() -> None:
    wire = Wire()
    one = answering(wire)
    await one.write(b"data: 1\n\n")
    await one.fail(Malformed("No."))
    assert wire.sent[-1]["more_body"] is False
    assert b'data: {"error":' in wire.body and b"[DONE]" not in wire.body


async def test_parts_written_at_once_do_not_mix_and_the_head_is_sent_once() -> None:
    wire = Wire()
    one = answering(wire)
    wire.open.clear()
    tasks = [asyncio.create_task(written(one, b"data: %d\n\n" % number)) for number in range(5)]
    wire.open.set()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert wire.types == ["start"] + ["body"] * 5
    assert wire.body == b"".join(b"data: %d\n\n" % number for number in range(5))


# -- the watch -------------------------------------------------------------------------------------------------------


class Line:
    """What the server would say of the client."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_whose_client_leaves_ends_as_client_left() -> None:
    line = Line()
    with pytest.raises(ClientLeft):
        async with asyncio.timeout(BOUND):
            with Watch(line, Watches()):
                line.gone.set()
                await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0, "the task is left cancelled"


async def test_work_that_must_end_ends_as_shutting_down() -> None:
    with pytest.raises(ShuttingDown):
        async with asyncio.timeout(BOUND):
            with Watch(Line(), Watches()) as watch:
                asyncio.get_running_loop().call_soon(watch.end)
                await asyncio.Event().wait()


async def test_the_first_reason_stands() -> None:
    line = Line()
    with pytest.raises(ShuttingDown):
        async with asyncio.timeout(BOUND):
            with Watch(line, Watches()) as watch:
                watch.end()
                line.gone.set()
                await asyncio.Event().wait()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    started = asyncio.Event()

    async def work() -> None:
        with Watch(Line(), Watches()):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_error_of_the_work_is_not_covered_up() -> None:
    with pytest.raises(Malformed), Watch(Line(), Watches()):
        raise Malformed("No.")


async def test_a_client_that_leaves_afterwards_cancels_nothing() -> None:
    line = Line()
    with Watch(line, Watches()) as watch:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    line.gone.set()
    watch.end()
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_one_timer_begins_the_watches_of_all_and_rests_when_nobody_is_left() -> None:
    watches, lines = Watches(), [Line() for _ in range(5)]

    async def work(line: Line) -> str:
        try:
            with Watch(line, watches):
                await asyncio.Event().wait()
        except ClientLeft:
            return "left"
        return ""

    async with asyncio.timeout(BOUND):
        tasks = [asyncio.create_task(work(line)) for line in lines]
        for line in lines[1:]:
            line.gone.set()
        assert await asyncio.gather(*tasks[1:]) == ["left"] * 4
        assert not tasks[0].done(), "another's client has left"
        lines[0].gone.set()
        assert await tasks[0] == "left"
        while watches._timer is not None:
            await asyncio.sleep(0.01)
        with Watch(Line(), watches):
            assert watches._timer is not None
