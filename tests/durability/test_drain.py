"""T-50: SIGTERM. Not ready at once, still accepting for the configured while, and every running answer comes to its
end; a second signal ends what runs with an error that nobody can take for an end. All rows are closed either way.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.durability.asking import Line, Reply, chat
from tests.durability.process import Weir, running, usage_rows
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure

STREAMS = 200
BODIES = 10


class Slow:
    """Begins each answer, and ends it with `release`; without one, never."""

    def __init__(self, release: asyncio.Event | None = None) -> None:
        self.release = release

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if not request.stream:
            await reply.hang(self.release)
            await reply.json(200, chat_reply("Whole.", usage=usage(9, 1)))
            return
        chunks = chat_chunks("A weir keeps a river from overflowing.", usage=usage(9, 9))
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chunks[:3]:
            await reply.event(chunk)
        await reply.hang(self.release)
        for chunk in chunks[3:]:
            await reply.event(chunk)
        await reply.event(b"[DONE]")
        await reply.end()


async def begin(weir: Weir, number: int) -> Line:
    """A stream of which the client has seen the first word."""
    line = await weir.connect()
    await line.send(chat("slow", "Go on.", stream=True, id=f"stream-{number}"))
    status, _ = await line.head()
    assert status == 200, await line.rest()
    assert await line.piece()
    return line


async def end(line: Line) -> Reply:
    with line:
        return Reply(200, {"content-type": "text/event-stream"}, await line.rest())


async def until_not_ready(weir: Weir) -> int:
    async with asyncio.timeout(10):
        while (answer := await weir.get("/readyz")).status == 200:
            pass
    return answer.status


async def test_two_hundred_streams_finish_after_sigterm(tmp_path: Path, figure: Figure) -> None:
    clock = asyncio.get_running_loop().time
    release = asyncio.Event()
    async with ScriptedUpstream(Slow(release)) as up, running(up.url, tmp_path, server__drain_delay=3) as weir:
        lines = await asyncio.gather(*(begin(weir, number) for number in range(STREAMS)))
        waiting = [
            asyncio.create_task(weir.ask(chat("slow", "Go on.", stream=False, id=f"body-{number}")))
            for number in range(BODIES)
        ]
        await up.arrived(STREAMS + BODIES)
        told = clock()
        weir.signal(signal.SIGTERM)
        status = await until_not_ready(weir)
        noticed = clock() - told
        late = asyncio.create_task(weir.ask(chat("slow", "Am I late?", stream=False, id="late")))
        await up.arrived(STREAMS + BODIES + 1)
        release.set()
        answers = await asyncio.gather(*map(end, lines))
        bodies = await asyncio.gather(*waiting, late)
        finished = clock()
        code = await weir.ended()
        left = clock() - max(finished, told + 3)
    rows = usage_rows(weir.file)
    figure.all(
        ("50 /readyz after SIGTERM", status, "== 503"),
        ("50 seconds until it says so", noticed, "<= 1"),
        ("50 streams finished", sum(answer.acknowledged for answer in answers), f"== {STREAMS}"),
        ("50 JSON answers finished, one sent while leaving", sum(map(acknowledged, bodies)), f"== {BODIES + 1}"),
        ("50 exit code", code, "== 0"),
        ("50 seconds from the last answer to the exit", left, "<= 2"),
        ("50 rows closed ok", sum(row["status"] == "ok" for row in rows), f"== {STREAMS + BODIES + 1}"),
        ("50 rows", len(rows), f"== {STREAMS + BODIES + 1}"),
    )


def acknowledged(reply: Reply) -> bool:
    return reply.acknowledged and reply.text == "Whole."


async def test_a_second_signal_ends_what_runs_with_an_error(tmp_path: Path, figure: Figure) -> None:
    clock = asyncio.get_running_loop().time
    count = 20
    async with ScriptedUpstream(Slow()) as up, running(up.url, tmp_path) as weir:
        lines = await asyncio.gather(*(begin(weir, number) for number in range(count)))
        body = asyncio.create_task(weir.ask(chat("slow", "Go on.", stream=False, id="body")))
        await up.arrived(count + 1)
        weir.signal(signal.SIGTERM)
        await refused(weir)
        told = clock()
        weir.signal(signal.SIGTERM)
        answers = await asyncio.gather(*map(end, lines))
        answer = await body
        code = await weir.ended()
        took = clock() - told
        await up.idle()
    rows = usage_rows(weir.file)
    figure.all(
        ("50 second signal: streams that end with an error", sum(map(cut, answers)), f"== {count}"),
        ("50 second signal: a JSON call's status", answer.status, "== 503"),
        ("50 second signal: exit code", code, "== 1"),
        ("50 second signal: seconds to the exit", took, "<= 4"),
        ("50 second signal: rows open", sum(row["status"] == "open" for row in rows), "<= 0"),
        ("50 second signal: rows closed", len(rows), f"== {count + 1}"),
        ("50 second signal: upstream calls closed", sum(entry.gone.is_set() for entry in up.ledger), f"== {count + 1}"),
    )
    assert answer.code == "shutting_down"
    assert answer.headers["x-should-retry"] == "true"


def cut(reply: Reply) -> bool:
    return reply.code == "shutting_down" and not reply.acknowledged


async def refused(weir: Weir) -> None:
    """Until the first signal has been taken: the door is closed."""
    async with asyncio.timeout(10):
        while True:
            try:
                await weir.get("/readyz")
            except (OSError, EOFError):
                return


class Knocking:
    """Clients who call without a pause, each call on a connection of its own, until the door is closed to them."""

    def __init__(self, weir: Weir) -> None:
        self.weir = weir
        self.answered = 0
        self.let_down = 0
        """Calls that were let in and not answered."""

    async def knock(self, who: int) -> None:
        request = chat("slow", "Hello.", stream=False, id=f"knock-{who}")
        while True:
            try:
                reply = await self.weir.ask(request)
            except ConnectionRefusedError:
                return
            except (OSError, EOFError):
                self.let_down += 1
            else:
                self.answered += reply.acknowledged
                self.let_down += not reply.acknowledged


@pytest.mark.timeout(90)
async def test_whoever_is_let_in_while_the_server_leaves_is_answered(tmp_path: Path, figure: Figure) -> None:
    """A balancer sends nothing anew that it has sent once; one that finds the door closed goes to another."""
    clients, times = 40, 5
    release = asyncio.Event()
    release.set()
    answered = let_down = 0
    async with ScriptedUpstream(Slow(release)) as up:
        for number in range(times):
            folder = tmp_path / str(number)
            folder.mkdir()
            async with running(up.url, folder) as weir:
                knocking = Knocking(weir)
                calls = [asyncio.create_task(knocking.knock(who)) for who in range(clients)]
                await up.arrived(len(up.ledger) + clients)
                weir.signal(signal.SIGTERM)
                await asyncio.gather(*calls)
                assert await weir.ended() == 0
            answered += knocking.answered
            let_down += knocking.let_down
    figure.all(
        ("50 knocking: calls answered", answered, f">= {clients * times}"),
        ("50 knocking: calls let in and not answered", let_down, "== 0"),
    )


@pytest.mark.timeout(90)
@pytest.mark.slow
async def test_a_drain_that_takes_too_long_is_ended(tmp_path: Path, figure: Figure) -> None:
    async with ScriptedUpstream(Slow()) as up, running(up.url, tmp_path, server__drain=1) as weir:
        line = await begin(weir, 0)
        weir.signal(signal.SIGTERM)
        answer = await end(line)
        code = await weir.ended()
    (row,) = usage_rows(weir.file)
    figure.all(("50 drain bound: streams that end with an error", cut(answer), "== 1"), ("50 exit code", code, "== 1"))
    assert row["status"] in ("cancelled", "partial")
