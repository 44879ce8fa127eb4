"""One client in front of a gateway process whose agent offers skills: all conversations, and what everyone saw of them.

heard = await hear("langchain", folder, keys())
heard.answers[key]      # the answers the client read, one for each time it asked
heard.asked[key]        # what the provider was sent
heard.rows[key]         # the usage rows, as the gateway's own API lists them
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.clients import loading, programs, wire
from tests.clients.framing import MANNERS, Wire
from tests.clients.loading import AGAIN, CASES, SUN, WEATHER, Key, Model
from tests.durability.process import Row, Weir, running
from tests.fakes import ScriptedUpstream, SeenRequest, tool_call

CLIENTS = (wire.NAME, *programs.READERS)
MODES = ("json", "sse", "sse+usage")
ROWS = 10_000


@dataclass
class Heard:
    client: str
    answers: dict[Key, list[Wire]] = field(default_factory=dict)
    asked: dict[Key, list[SeenRequest]] = field(default_factory=dict)
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    again: dict[Key, tuple[Wire, SeenRequest]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class _Messages(msgspec.Struct):
    messages: list[msgspec.Raw]


def raw_messages(request: SeenRequest) -> list[bytes]:
    """The messages of a request, each as its bytes came."""
    return [bytes(raw) for raw in msgspec.json.decode(request.body, type=_Messages).messages]


def keys(client: str = wire.NAME) -> tuple[Key, ...]:
    """Each case as JSON, and as a stream in each manner; without usage an SDK need not read them all."""
    manners = {"json": ("openai",), "sse": tuple(MANNERS), "sse+usage": tuple(MANNERS)}
    if client != wire.NAME:
        manners["sse"] = ("openai",)
    return tuple(Key(case, manner, mode) for case in CASES for mode in MODES for manner in manners[mode])


def task(url: str, key: Key, naming: str = "label and end user") -> Wire:
    """What a client is asked to do. The end user names the rows, the session the conversation."""
    named = {"label": {"metadata": {"session_id": str(key)}}, "end user": {"user": str(key)}}
    return {
        "base_url": url,
        "model": key.agent,
        "messages": [{"role": "user", "content": str(key)}],
        "stream": key.stream,
        "usage": key.usage,
        "tools": [WEATHER],
        "extra": {name: value for how, members in named.items() if how in naming for name, value in members.items()},
        "results": {"weather": SUN},
    }


async def hear(
    client: str,
    folder: Path,
    chosen: Sequence[Key],
    *,
    model: Model | None = None,
    again: Sequence[Key] = (),
    naming: str = "label and end user",
    normalise: bool = False,
) -> Heard:
    """All conversations of `chosen`, through one process of the client and one of the gateway; then one more question
    in those of `again`."""
    loading.installed(folder, normalise=normalise)
    model = model or Model()
    heard = Heard(client, violations=model.violations)
    async with ScriptedUpstream(model) as up, running(up.url, folder, "--config", "weir.yaml") as weir:
        tasks = {key: task(f"http://127.0.0.1:{weir.port}/v1", key, naming) for key in chosen}
        for key, answer in zip(chosen, await ask(client, weir, [*tasks.values()], folder), strict=True):
            heard.answers[key] = list(in_turn(answer))
        await weir.still()
        rows = await listed(weir)
        asked = len(up.ledger)
        more = [{**tasks[key], "messages": [*tasks[key]["messages"], *history(heard.answers[key])]} for key in again]
        answers = await ask(client, weir, more, folder)
        for key, answer, entry in zip(again, answers, up.ledger[asked:], strict=True):
            heard.again[key] = answer, entry.request
    for key in chosen:
        heard.rows[key] = [row for row in rows if row["end_user"] == str(key)]
        heard.asked[key] = []
    for entry in up.ledger[:asked]:
        heard.asked[Key.of(entry.request)].append(entry.request)
    return heard


def history(answers: Sequence[Wire]) -> Iterator[Wire]:
    """What a client that was given `answers` has in its history, and a question more."""
    for answer in answers:
        calls = [tool_call(call["id"], call["name"], call["arguments"]) for call in answer["calls"]]
        said = {"role": "assistant", "content": answer["text"] or None}
        yield {**said, "tool_calls": calls} if calls else said
        yield from ({"role": "tool", "tool_call_id": call["id"], "content": SUN} for call in answer["calls"])
    yield {"role": "user", "content": AGAIN}


async def listed(weir: Weir) -> list[Row]:
    """The usage rows in the order of their calls, as the gateway lists them."""
    rows: list[Row] = json.loads((await weir.get(f"/v1/weirgate/usage?limit={ROWS}")).body)["data"]
    return sorted(rows, key=lambda row: row["opened_at"])


async def ask(client: str, weir: Weir, tasks: Sequence[Wire], folder: Path) -> list[Wire]:
    if not tasks:
        return []
    if client == wire.NAME:
        return await wire.ask(weir.port, tasks)
    return await asyncio.to_thread(programs.ask, client, tasks, folder)


def in_turn(answer: Wire) -> Iterator[Wire]:
    """An answer and those that followed upon the client's results."""
    while answer:
        yield answer
        answer = answer.get("next") or {}
