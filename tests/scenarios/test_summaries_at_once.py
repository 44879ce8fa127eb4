"""Several clients behind one summary, and clients that leave behind it: one compaction per branch, nothing lost and
nothing left over. What a summary model was already writing is stored, whoever left meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from proxy.core.conversation import Message
from proxy.core.notes import Sightings
from proxy.gateway import Gateway
from proxy.store.sqlite import SqliteStore
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, usage
from tests.scenarios.acts import balanced
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, Wire, gate, shown, user
from tests.scenarios.summarisers import GOOD, Provider, account, checking, saying
from tests.server.wired import Exchange, chat

WINDOW = 4_096
TURNS = 11
CONVERSATIONS = 50
LEAVINGS = 50
LONGEST = 40.0


def conversation(name: str) -> list[Wire]:
    return [user(f"This is {name}."), *checking(TURNS)]


def of(prompt: list[Wire], names: list[str]) -> str:
    """Which conversation a prompt is of."""
    text = "\n".join(map(shown, prompt))
    return next(name for name in names if f"This is {name}." in text)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_two_requests_of_each_of_fifty_conversations_at_once_share_one_summary(
    stream: bool, figure: Figure
) -> None:
    arrived, all_there = 0, asyncio.Event()

    async def summariser(request: SeenRequest, reply: Script) -> None:
        """Answers once every conversation's first request is here; the second ones wait meanwhile."""
        nonlocal arrived
        arrived += 1
        if arrived == CONVERSATIONS:
            all_there.set()
        async with asyncio.timeout(LONGEST):
            await all_there.wait()
        await saying(GOOD)(request, reply)

    names = [f"conversation {number:02d}" for number in range(CONVERSATIONS)]
    provider = Provider(summariser, None)
    async with ScriptedUpstream(provider) as up, gate(up.url, window=WINDOW, policies=None) as opened:
        answers = await asyncio.gather(
            *(opened.ask(conversation(name), stream=stream) for name in names for _ in range(2))
        )
        rows = await balanced(opened, up)
        stored = (await opened.stored())["compaction"]
        made = await opened.metric('weirgate_compactions_total{model="other",outcome="stored"')
        leases = gateway_of(opened).leases.held
    ids = [row.compaction_id for row in rows if row.purpose == "chat"]
    summaries = Counter(of([{"content": shown(body["messages"][0])}], names) for body in provider.summaries)
    figure.all(
        ("requests answered", sum(answer.status == 200 for answer in answers), f"== {2 * CONVERSATIONS}"),
        ("requests told through the model's notes", sum(a.context["notes"] == "scripted" for a in answers), "== 100"),
        ("most summary calls of a conversation", max(summaries.values()), "== 1"),
        ("compactions stored, of 50 branches", stored, f"== {CONVERSATIONS}"),
        ("compactions made", made, f"== {CONVERSATIONS}"),
        ("compactions in use per branch", max(Counter(ids).values()) / 2, "== 1"),
        ("requests of the user lost", sum(account(prompt, TURNS + 1)[3] for prompt in provider.told), "== 0"),
        ("leases held afterwards", leases, "== 0"),
    )


# -- a client leaves ---------------------------------------------------------------------------------------------------


class Gated(SqliteStore):
    """Stops where a lease is asked for, until it is let go on."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.stop: Stop | None = None

    async def claim(self, tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        if self.stop is not None:
            await self.stop.here()
        return await super().claim(tenant, key, owner, now, seconds)

    async def leases(self) -> int:
        return int(await self._thread.read(lambda db: db.execute("SELECT count(*) FROM lease").fetchone()[0]))


class Stop:
    """A place where a call stands still while its client leaves."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def here(self) -> None:
        self.reached.set()
        async with asyncio.timeout(LONGEST):
            await self.go.wait()


class House:
    """The gateway, whose calls can be stopped at each stage of a compaction."""

    def __init__(self) -> None:
        self.store = Gated()
        self.provider = Provider(self.summarise, None)
        self.stops: dict[str, Stop] = {}
        self.planning = threading.Event()
        self.planned = threading.Event()

    def prepare(self, stage: str, gateway: Gateway) -> Stop:
        self.stops = {stage: Stop()}
        self.store.stop = self.stops.get("before the summary call")
        if stage == "while planning":
            self.planning.clear()
            self.planned.clear()
            scan = gateway.snapshots.sighted.scan

            def slowly(item: Message, *more: Any) -> Sightings:
                self.planning.set()
                assert self.planned.wait(LONGEST)
                return scan(item, *more)

            gateway.snapshots.sighted.scan = slowly  # type: ignore[method-assign]
        return self.stops[stage]

    async def reached(self, stop: Stop, stage: str) -> None:
        async with asyncio.timeout(LONGEST):
            if stage == "while planning":
                await asyncio.get_running_loop().run_in_executor(None, self.planning.wait, LONGEST)
            else:
                await stop.reached.wait()

    async def summarise(self, request: SeenRequest, reply: Script) -> None:
        stop = self.stops.get("while the summary is written")
        await reply.head(200, {"content-type": "text/event-stream"})
        chunks = chat_chunks(GOOD, usage=usage(900, 90), size=64)
        for number, chunk in enumerate(chunks):
            if stop is not None and number == len(chunks) // 2:
                await stop.here()
            await reply.event(chunk)
        await reply.event(b"[DONE]")
        await reply.end()

    async def serve(self, request: SeenRequest, reply: Script) -> None:
        stop = self.stops.get("after it, in the call")
        if stop is not None and "Now write the notes" not in shown(request.messages[0]):
            stop.reached.set()
            await reply.hang()
        else:
            await self.provider(request, reply)


# stage: summary calls and compactions that the client who left leaves behind
LEFT = {
    "before the summary call": (0, 0),
    "while planning": (0, 0),
    "while the summary is written": (1, 1),
    "after it, in the call": (1, 1),
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("stage", LEFT)
async def test_whoever_leaves_leaves_the_old_history_or_new_notes_and_no_work(stage: str, figure: Figure) -> None:
    house, found = House(), Counter[str]()
    async with ScriptedUpstream(house.serve) as up:
        opening = gate(up.url, window=WINDOW, store=house.store, policies=None)
        async with opening as opened:
            await opened.ask(conversation("the first of all"))
            tasks = len(asyncio.all_tasks())
            for number in range(LEAVINGS):
                found.update(await left(house, opened, stage, number))
            found["tasks left over"] = max(0, len(asyncio.all_tasks()) - tasks)
            await balanced(opened, up)
            found["leases"] = gateway_of(opened).leases.held + await house.store.leases()
    summaries, compactions = LEFT[stage]
    figure.all(
        (f"left {stage}: times", found["left"], f"== {LEAVINGS}"),
        (f"left {stage}: summaries", found["summaries"], f"== {LEAVINGS * summaries}"),
        (f"left {stage}: compactions stored", found["compactions"], f"== {LEAVINGS * compactions}"),
        (f"left {stage}: answered on return", found["answered"], f"== {LEAVINGS}"),
        (f"left {stage}: summaries for those who return", found["anew"], f"== {LEAVINGS * (1 - summaries)}"),
        (f"left {stage}: requests of the user lost", found["lost"], "== 0"),
        (f"left {stage}: leases, tasks left over", found["leases"] + found["tasks left over"], "== 0"),
    )


async def left(house: House, opened: Gate, stage: str, number: int) -> Counter[str]:
    """A client comes, leaves at `stage`, and comes back."""
    gateway = gateway_of(opened)
    talk = conversation(f"number {number} who leaves")
    summaries, stored = len(house.provider.summaries), (await opened.stored())["compaction"]
    stop = house.prepare(stage, gateway)
    call = chat(opened.app, {"model": "scripted", "messages": talk, "stream": number % 2 == 0})
    await house.reached(stop, stage)
    await gone(call)
    stop.go.set()
    house.planned.set()
    async with asyncio.timeout(LONGEST):
        await gateway.drain()
    if stage == "while planning":
        del gateway.snapshots.sighted.scan  # the real one again
    house.stops, house.store.stop = {}, None
    between = len(house.provider.summaries)
    seen = Counter(left=1, summaries=between - summaries)
    seen["compactions"] = (await opened.stored())["compaction"] - stored
    async with asyncio.timeout(LONGEST):
        answer = await opened.ask(talk)
    seen["answered"] = answer.status == 200 and answer.context.get("notes") == "scripted"
    seen["anew"] = len(house.provider.summaries) - between
    seen["lost"] = account(house.provider.told[-1], TURNS + 1)[3]
    return seen


async def gone(call: Exchange) -> None:
    """The client leaves, and nobody is served any more."""
    call.leave()
    await call.done()


def gateway_of(opened: Gate) -> Gateway:
    found = opened.app._gateway
    assert found is not None
    return found
