"""Real conversations before an agent with all four layers, whose model loads skills as it goes: the prefix law.

Each recorded assistant message is one request with everything before it, under a label. The provider answers with that
very message, but loads skills on the way: alone, twice, and beside the client's own calls. Some requests select a skill
by its slug. Every prompt that goes upstream, of later rounds too, must begin with the whole one before it, unless a
compaction lies between, or a selection, which re-writes the system message where `skills_place` is system. Memory is
off: what it trims, and when, is proved apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.core.slugs import selected
from tests import data
from tests.data import Conversation
from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, Wire, gate, raw_messages, shown
from tests.strict import StrictUpstream

pytestmark = pytest.mark.data

WINDOW = 12_000
SKILLS = {
    "tone": "Before any text that a person will read.",
    "tests": "When code is changed and tests are to be run.",
    "review": "Before a change is handed over.",
}
BASE = "You work for Harbour Ltd. Today is {date}."
PARTS = {
    "specstory-2026-06-18-14-52-09": range(600, 624),
    "cursor-pt-plano": range(44),
    "pi-refactor-full": range(300, 324),
    "aider-day-20240809": range(50),
    "openhands-ponylang__ponyc-4595": range(40),
    "tau-airline-2-1": range(44),
}


def agent(place: str) -> Wire:
    return {
        "model": "fast",
        "instructions": "Help with {agent} work.",
        "skills": [*SKILLS],
        "skills_place": place,
        "effort": "low",
        "memory": False,
    }


class Talk:
    """A conversation as its client sends it: every fourth request begins with a slug."""

    def __init__(self, row: Conversation, part: range | None = None) -> None:
        self.id = row.id
        self.messages = list(_selecting(row.messages))
        self.wires = [json.dumps(message, ensure_ascii=False).encode() for message in self.messages]
        self.tools = row.tools
        self.steps = [
            at
            for at, message in enumerate(self.messages)
            if at and message["role"] == "assistant" and (part is None or at in part)
        ]

    def body(self, at: int, model: str) -> bytes:
        rest: Wire = {"model": model, "stream": bool(at % 2), **({"tools": self.tools} if self.tools else {})}
        return json.dumps(rest).encode()[:-1] + b', "messages": [' + b",".join(self.wires[:at]) + b"]}"

    def skills(self, at: int) -> tuple[str, ...]:
        """What the newest request among the first `at` messages selects; neighbouring user messages are one, also where
        a message of nothing stands between them: none goes upstream."""
        told = [message for message in self.messages[:at] if shown(message).strip()]
        while told and told[-1]["role"] != "user":
            told.pop()
        found: tuple[str, ...] = ()
        while told and told[-1]["role"] in ("user", "system"):
            found = (*selected(shown(told.pop())), *found)
        return found


def _selecting(messages: Sequence[Wire]) -> Iterator[Wire]:
    requests = 0
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], str) and message["content"].strip():
            requests += 1
            # What a recording has there is no skill of ours.
            said = f"> {message['content']}" if selected(message["content"]) else message["content"]
            yield {**message, "content": f"/{[*SKILLS][requests % 3]} {said}" if requests % 4 == 0 else said}
        else:
            yield message


@dataclass
class Seen:
    prompts: int = 0
    rounds: int = 0
    comparable: int = 0
    extended: int = 0
    compactions: int = 0
    selections: int = 0
    broken: list[str] = field(default_factory=list)


class Player:
    """Plays conversations; the provider's side is `strict`."""

    def __init__(self) -> None:
        self.strict = StrictUpstream(window=WINDOW, answer=self._says)
        self.next: Wire = {}
        self.loads: list[str] = []

    def _says(self, request: SeenRequest) -> Wire:
        said = self._recorded()
        own = "load_skill" in [tool["function"]["name"] for tool in request.json.get("tools") or ()]
        if not own or not self.loads:
            return said
        how = self.loads.pop()
        slug = [*SKILLS][len(request.messages) % 3]
        call = tool_call(f"w{len(request.messages)}", "load_skill", {"name": slug})
        if how == "beside" and said["tool_calls"]:
            return {**said, "tool_calls": [call, *said["tool_calls"]]}
        return {"content": None, "tool_calls": [call]}

    def _recorded(self) -> Wire:
        calls = []
        for call in self.next.get("tool_calls") or ():
            arguments = call["function"].get("arguments") or "{}"
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append({**call, "function": {"name": call["function"]["name"], "arguments": text}})
        text = shown({"content": self.next.get("content")})
        return {"content": text or (None if calls else "(nothing)"), "tool_calls": calls}

    async def play(self, talk: Talk, place: str, weir: Gate, up: ScriptedUpstream, seen: Seen) -> None:
        before: tuple[tuple[str, object], tuple[bytes, ...]] | None = None
        for at in talk.steps:
            self.next = talk.messages[at]
            self.loads = {0: ["alone"], 1: ["beside"], 2: ["alone", "alone"]}.get(at % 7, [])
            answer = await weir.send(talk.body(at, place), headers={"x-session-id": talk.id})
            if answer.status != 200 or answer.error:
                assert answer.code == "context_length_exceeded", (talk.id, at, answer.body[:300])
                before = None
                up.ledger.clear()
                continue
            served = [entry.request.body for entry in up.ledger]
            up.ledger.clear()
            seen.rounds += len(served) - 1
            for body in served:
                before = self._extended(f"{talk.id}[{at}] {place}", talk, at, place, body, before, seen)
            if not shown(self.next).strip():
                before = None  # a message of nothing: what was answered instead, this client does not send back

    def _extended(
        self,
        name: str,
        talk: Talk,
        at: int,
        place: str,
        body: bytes,
        before: tuple[tuple[str, object], tuple[bytes, ...]] | None,
        seen: Seen,
    ) -> tuple[tuple[str, object], tuple[bytes, ...]]:
        """Whether this prompt begins with the whole one before it, if both rest on the same notes and selection."""
        messages = raw_messages(body)
        seen.prompts += 1
        notes = next((message.decode() for message in messages if b"<conversation-notes id=" in message), "")
        state = (notes, talk.skills(at) if place == "system" else ())
        if before is not None:
            if before[0] == state:
                seen.comparable += 1
                if messages[: len(before[1])] == before[1]:
                    seen.extended += 1
                else:
                    kept = sum(1 for a, b in zip(messages, before[1], strict=False) if a == b)
                    seen.broken.append(f"{name}: {kept} of {len(before[1])} messages")
            elif before[0][0] != notes:
                seen.compactions += 1
            else:
                seen.selections += 1
        return state, messages


async def prove(talks: Sequence[Talk], figure: Figure, folder: Path, name: str) -> None:
    for slug, when in SKILLS.items():
        (folder / "shared" / slug).mkdir(parents=True)
        text = f"---\nname: {slug}\ndescription: {when}\n---\n" + f"Step of {slug}: look twice, then act.\n" * 12
        (folder / "shared" / slug / "SKILL.md").write_text(text)
    player, seen = Player(), Seen()
    settings: dict[str, Any] = {
        "models": {"fast": {"upstream": "main", "model": "scripted"}},
        "agents": {place: agent(place) for place in ("system", "message")},
        "base_prompt": BASE,
        "skills__folders": [str(folder)],
        "window": WINDOW,
    }
    async with ScriptedUpstream(player.strict) as up, gate(up.url, **settings) as weir:
        for number, talk in enumerate(talks):
            await player.play(talk, ("system", "message")[number % 2], weir, up, seen)
        stored = await weir.stored()
    for broken in seen.broken[:20]:
        print(f"  {broken}")
    print(
        f"{name}: {len(talks)} conversations, {seen.prompts} prompts, {seen.rounds} tool rounds, "
        f"{seen.compactions} changes of notes, {seen.selections} of selection, {stored['hidden']} hidden states"
    )
    figure.all(
        (f"{name}: malformed prompts", len(player.strict.violations), "== 0"),
        (f"{name}: prefix law", seen.extended / max(1, seen.comparable), ">= 1"),
    )
    assert min(seen.compactions, seen.selections, seen.rounds, stored["hidden"]) > 0


@pytest.mark.timeout(240)
async def test_prompts_extend_each_other_with_layers_and_tools_on(figure: Figure, tmp_path: Path) -> None:
    rows = list(data.conversations())
    short = [row for row in rows if row.id not in PARTS and len(row.messages) <= 60][::5]
    talks = [Talk(row, PARTS[row.id]) for row in rows if row.id in PARTS] + [Talk(row) for row in short]
    await prove(talks, figure, tmp_path, "layers, selection")


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_all_prompts_extend_each_other_with_layers_and_tools_on(figure: Figure, tmp_path: Path) -> None:
    await prove([Talk(row) for row in data.conversations()], figure, tmp_path, "layers, all")
