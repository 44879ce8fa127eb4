"""T-40, T-42: the disk gives out while the gateway serves, and comes back. No upstream call that cannot be accounted
for, no answer that looks whole and is not recorded, and no restart needed. And one file belongs to one gateway.

The disk is broken from outside: the process may not make any file longer (RLIMIT_FSIZE), as on a full disk.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from tests.durability.asking import Line, Reply, chat
from tests.durability.process import Weir, running, start, usage_rows
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure

CALLS = 10

needs_prlimit = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process: Linux only")


class Patient:
    """Answers at once, or, for the model "slow", when it is told to."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        slow = request.model == "slow"
        if not request.stream:
            if slow:
                await reply.hang(self.release)
            await reply.json(200, chat_reply("Whole.", usage=usage(9, 1)))
            return
        first, *others = chat_chunks("Whole.", usage=usage(9, 1))
        await reply.head(200, {"content-type": "text/event-stream"})
        await reply.event(first)
        await reply.event(others.pop(0))
        if slow:
            await reply.hang(self.release)
        for chunk in others:
            await reply.event(chunk)
        await reply.event(b"[DONE]")
        await reply.end()


def disk(weir: Weir, *, works: bool) -> None:
    _, hard = resource.prlimit(weir.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(weir.pid, resource.RLIMIT_FSIZE, (hard if works else 0, hard))


async def begun(weir: Weir, id: str) -> Line:
    line = await weir.connect()
    await line.send(chat("slow", "Hello", stream=True, id=id))
    assert (await line.head())[0] == 200
    assert await line.piece()
    return line


async def end(line: Line) -> Reply:
    with line:
        return Reply(200, {"content-type": "text/event-stream"}, await line.rest())


def told(reply: Reply) -> bool:
    """A client was told that the storage failed, in the form of its answer, and nothing looks whole."""
    return (reply.code or "").startswith("storage_") and not reply.acknowledged


async def until_ready(weir: Weir) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(10):
        while (await weir.get("/readyz")).status != 200:
            pass
    return clock() - began


@needs_prlimit
async def test_a_disk_that_gives_out_costs_no_call_and_lies_to_nobody(tmp_path: Path, figure: Figure) -> None:
    patient = Patient()
    async with ScriptedUpstream(patient) as up, running(up.url, tmp_path) as weir:
        lines = await asyncio.gather(*(begun(weir, f"caught-{number}") for number in range(CALLS)))
        waiting = [
            asyncio.create_task(weir.ask(chat("slow", "Hello", stream=False, id=f"caught-json-{number}")))
            for number in range(CALLS)
        ]
        await up.arrived(2 * CALLS)
        disk(weir, works=False)
        patient.release.set()
        caught = await asyncio.gather(*map(end, lines), *waiting)
        ready = await weir.get("/readyz")
        before = len(up.ledger)
        refused = [
            await weir.ask(chat("fast", "Hello", stream=number % 2 == 0, id=f"refused-{number}"))
            for number in range(CALLS)
        ]
        called = len(up.ledger) - before
        alive = await weir.get("/healthz")
        disk(weir, works=True)
        recovered = await until_ready(weir)
        after = [
            await weir.ask(chat("fast", "Hello", stream=number % 2 == 0, id=f"after-{number}"))
            for number in range(CALLS)
        ]
        assert await weir.stop() == 0
    rows = {row["request"]: row for row in usage_rows(weir.file)}
    figure.all(
        ("40 caught by it: told so, never as an end", sum(map(told, caught)), f"== {2 * CALLS}"),
        ("40 /readyz meanwhile", ready.status, "== 503"),
        ("40 /healthz meanwhile", alive.status, "== 200"),
        ("40 refused with 503", sum(told(reply) and reply.status == 503 for reply in refused), f"== {CALLS}"),
        ("40 upstream calls for these", called, "<= 0"),
        ("40 seconds until it is ready again, without a restart", recovered, "<= 5"),
        ("40 answered afterwards", sum(reply.acknowledged for reply in after), f"== {CALLS}"),
        ("40 rows of these closed ok", sum(rows[f"after-{n}"]["status"] == "ok" for n in range(CALLS)), f"== {CALLS}"),
        ("40 upstream calls without a closed row", unaccounted(up, rows), "<= 0"),
    )


def unaccounted(up: ScriptedUpstream, rows: dict[str, dict[str, object]]) -> int:
    ids = [entry.request.headers["x-request-id"] for entry in up.ledger]
    return sum(rows.get(id, {"status": "open"})["status"] == "open" for id in ids)


async def test_a_second_gateway_on_the_same_file_refuses_and_says_why(tmp_path: Path, figure: Figure) -> None:
    async with ScriptedUpstream(Patient()) as up, running(up.url, tmp_path) as weir:
        second = await start(up.url, tmp_path)
        code = await second.ended()
        said = [line for line in second.log.decode().splitlines() if line.strip()]
        first = await weir.ask(chat("fast", "Hello", stream=True, id="first"))
    async with ScriptedUpstream(Patient()) as up, running(up.url, tmp_path) as third:
        later = await third.ask(chat("fast", "Hello", stream=True, id="later"))
    figure.all(
        ("42 exit code of a second gateway on one file", code, "== 2"),
        ("42 lines it says", len(said), "== 1"),
        ("42 the first goes on serving", first.acknowledged, "== 1"),
        ("42 once it has left, another may", later.acknowledged, "== 1"),
    )
    assert "is in use by another process" in said[0]
    assert str(weir.pid) in said[0]
