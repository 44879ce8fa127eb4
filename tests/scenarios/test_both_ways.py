"""Recorded conversations with memory on, each driven by a client that keeps it and by one that sends only what is new:
the limits of memory hold in both, and the provider gets the same prompt, byte for byte, at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.core import groups
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Message
from proxy.core.own_compaction import asks_for_summary
from proxy.dialects.chat.messages import read_message
from tests import data
from tests.data import Conversation
from tests.fakes import tool_call
from tests.remembering import KINDS, Told, told_faults
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, Wire, assistant, raw_messages, tool, user
from tests.scenarios.twice import MODEL, Driven, Provider, Step, keeps, script, sends_what_is_new, two_gateways

LIMITS = MemoryLimits(step=1)
LONG = ("pi-refactor-full", "cursor-pt-plano", "specstory-2026-06-18-14-52-09")
AGENT: dict[str, Any] = {"model": "fast", "tools": ["read_tool_result"], "memory": {"step": 1}}


def read(messages: Iterable[Wire]) -> tuple[Message, ...]:
    return tuple(read_message(msgspec.json.encode(item), place) for place, item in enumerate(messages))


def told(body: bytes) -> tuple[Message, ...]:
    return tuple(read_message(raw, place) for place, raw in enumerate(raw_messages(body)))


async def stored(weir: Gate) -> frozenset[str]:
    """The references of all whole texts."""
    return frozenset(reference for (reference,) in await weir.read("SELECT reference FROM result"))


class Judge:
    """What is wrong with the prompts of one drive."""

    def __init__(self, weir: Gate) -> None:
        self.weir = weir
        self.found: Counter[str] = Counter()
        self.prompts = 0

    async def look(self, name: str, each: Driven) -> None:
        shown = groups.repair(read(each.history)).messages
        if asks_for_summary(shown):
            return  # it reads everything
        self.prompts += 1
        names = await stored(self.weir)
        prompt = Told(
            shown=shown,
            told=told(each.bodies[-1]),
            compacted=each.compaction != "none",
            stored=names.__contains__,
        )
        for fault in told_faults(prompt, LIMITS):
            self.found[fault.split(":")[0]] += 1
            print(f"  {name} at {len(each.history)}: {fault}")


def rest(body: bytes) -> dict[str, Any]:
    """All members of a request but its messages."""
    return {name: value for name, value in msgspec.json.decode(body).items() if name != "messages"}


async def drive(row: Conversation, steps: list[Step], one: Judge, two: Judge, ups: tuple[Provider, Provider]) -> int:
    """Drive `row` both ways, step by step; how many prompts differ."""
    differ = 0
    second = sends_what_is_new(two.weir, ups[1], row.id, steps)
    async for mine in keeps(one.weir, ups[0], row.id, steps):
        theirs = await anext(second)
        assert mine.history == theirs.history
        await one.look(f"{row.id}, client-owned", mine)
        await two.look(f"{row.id}, gateway-owned", theirs)
        if not same(mine, theirs):
            differ += 1
            print(f"  {row.id} at {len(mine.history)}: the two prompts differ")
    return differ


def same(mine: Driven, theirs: Driven) -> bool:
    """Whether the provider got the same of both, round by round: messages byte for byte, other members by value."""
    return len(mine.bodies) == len(theirs.bodies) and all(
        raw_messages(one) == raw_messages(other) and rest(one) == rest(other)
        for one, other in zip(mine.bodies, theirs.bodies, strict=True)
    )


async def prove(figure: Figure, folder: Path, name: str, rows: Iterable[Conversation], most: int) -> None:
    models = {"fast": {"upstream": "main", "model": "scripted"}}
    agents = {MODEL: {**AGENT, "instructions": "Help."}}
    differ = conversations = 0
    async with two_gateways(folder, models=models, agents=agents) as ((one, first), (two, second)):
        mine, theirs = Judge(one), Judge(two)
        for row in rows:
            steps = list(script(row))[:most]
            conversations += bool(steps)
            differ += await drive(row, steps, mine, theirs, (first, second))
    print(f"{name}: {conversations} conversations, {mine.prompts} prompts each way")
    figure.all(
        *((f"{name}, client-owned: {kind}", mine.found[kind], "== 0") for kind in KINDS),
        *((f"{name}, gateway-owned: {kind}", theirs.found[kind], "== 0") for kind in KINDS),
        (f"{name}: malformed prompts", len(first.violations) + len(second.violations), "== 0"),
        (f"{name}: prompts that differ", differ, "== 0"),
    )
    assert theirs.prompts == mine.prompts > 0


def selection() -> list[Conversation]:
    """Every fifth of the short conversations, and the long ones from which turns slide out."""
    rows = list(data.conversations())
    short = [row for row in rows if row.id not in LONG and len(row.messages) <= 110][::5]
    return [row for row in rows if row.id in LONG] + short


@pytest.mark.data
@pytest.mark.timeout(240)
async def test_both_ways_tell_the_same_within_the_limits_of_memory(figure: Figure, tmp_path: Path) -> None:
    await prove(figure, tmp_path, "both ways", selection(), 32)


def scripted() -> Iterator[Step]:
    """A conversation with our own tools, alone and beside the client's, commands, and turns that fill the window."""
    lost = tool_call("r1", "read_tool_result", {"reference": "res_" + "a" * 24})
    for number in range(9):
        words = " ".join(f"harbour{number}x{place}" for place in range(150))
        call = tool_call("c1", "grep", {"pattern": words[:900]})
        mixed = assistant("I look at both.", tool_call("r2", "read_tool_result", {"reference": "none"}), call)
        yield Step(new=(user(f"Question {number} about {words}?"),), answers=(assistant("I read. ", lost), mixed))
        yield Step(new=(tool("c1", f"{words}\n" * 3),), answers=(assistant(f"Answer {number}: {words}."),))
        if number in (4, 5):
            yield Step(new=(user("/compact keep the harbours"),), answers=())


async def test_nor_do_own_tools_notes_and_commands_make_a_difference(tmp_path: Path) -> None:
    models = {"fast": {"upstream": "main", "model": "scripted"}}
    agents = {MODEL: {**AGENT, "instructions": "Help.", "memory": {"step": 1, "turns": 3}}}
    policy = "window: 8192\nsummary: {model: false}\n"
    async with two_gateways(tmp_path, models=models, agents=agents, policy=policy) as (one, two):
        mine = [each async for each in keeps(*one, "conv_1", scripted())]
        theirs = [each async for each in sends_what_is_new(*two, "conv_1", scripted())]
    assert [each.history for each in mine] == [each.history for each in theirs]
    assert [same(*both) for both in zip(mine, theirs, strict=True)] == [True] * 20
    assert [len(each.bodies) for each in mine] == [2, 1] * 5 + [0] + [2, 1] + [0] + [2, 1] * 3
    assert {each.compaction for each in mine} == {"none", "auto", "manual"}
    assert (one[1].violations, two[1].violations) == ([], [])


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_both_ways_tell_the_same_in_every_conversation_at_every_call(figure: Figure, tmp_path: Path) -> None:
    await prove(figure, tmp_path, "both ways, all", data.conversations(), 100_000)
