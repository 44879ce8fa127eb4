"""What notes refer to is still to be had, whole, however many compactions lie between, and after a restart.

A client goes on with a conversation of long results. Then the gateway starts again over the same file, and the model
reads with `read_tool_result` all that the notes in its prompt name; what those texts name in turn is looked up as that
tool does. Whole is what the client's tool gave back, character by character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.summarisers import good
from proxy.core import chain
from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, Wire, assistant, gate, shown, tool, user
from tests.scenarios.summarisers import is_summary
from tests.strict import StrictUpstream

READ = "read_tool_result"
WINDOW = 12_000
READS = 2
"""References that the model reads in a turn: what it read stays whole until that is over."""
_REFERENCE = re.compile(r"res_[a-p]{24}")
_PIECE = re.compile(r"\[characters (\d+) to (\d+) of (\d+); (?:\d+ are left, from offset \d+|this is the end)\]\n")
ARMS: dict[str, Any] = {"window": False, "memory": {"turns": 2, "step": 1}}
"""Compactions because the window fills, with a narrative; and those of what slides out of memory."""


def agents(memory: Any) -> dict[str, Any]:
    clerk = {"model": "fast", "instructions": "Help.", "tools": [READ], "memory": memory}
    return {"models": {"fast": {"upstream": "main", "model": "scripted"}}, "agents": {"clerk": clerk}}


def turn(number: int) -> list[Wire]:
    """A request, a long result that is like no other, and an answer."""
    fact = f"Gate {number} of the weir stands at {number * 37} mm."
    listing = "\n".join(
        f"lock {number}, row {row}: level {number * 1000 + row * 7} at /srv/locks/{number}/{row}.log"
        for row in range(70)
    )
    return [
        user(f"How does gate {number} stand?"),
        assistant(None, tool_call(f"c{number}", "levels", {"gate": number})),
        tool(f"c{number}", f"{fact}\n{listing}"),
        assistant(f"Gate {number} stands well."),
    ]


class Model:
    """The provider's side: it writes notes with facts, answers, and, once it may, reads what the notes name."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, int]] | None = None
        """What is left to be read, each from an offset."""
        self.read: dict[str, str] = {}
        self._notes = good(["stands at"], [])

    def says(self, request: SeenRequest) -> Wire | str:
        if is_summary(request):
            asked: Any = SimpleNamespace(messages=[SimpleNamespace(text=shown(request.messages[0]))])
            said = self._notes(asked).message
            return said.text if said is not None else ""
        if self.wanted is None:
            return "Well."
        messages = request.messages
        asked_at = max(place for place, item in enumerate(messages) if item["role"] == "user")
        answers = [item for item in messages[asked_at:] if item["role"] == "tool"]
        if answers:
            self._take(messages[-2], answers[-1]["content"])
        if not self.wanted or len(answers) == READS:
            return "That is all for now."
        name, offset = self.wanted.pop()
        return {"content": None, "tool_calls": [tool_call("r", READ, {"reference": name, "offset": offset})]}

    def _take(self, call: Wire, result: str) -> None:
        """Take down what came back for `call`, and what is left of it."""
        head = _PIECE.match(result)
        if head is None or self.wanted is None:
            return
        name = json.loads(call["tool_calls"][0]["function"]["arguments"])["reference"]
        self.read[name] = self.read.get(name, "")[: int(head[1])] + result[head.end() :]
        if int(head[2]) < int(head[3]):
            self.wanted.append((name, int(head[2])))


async def talked(weir: Gate, compactions: int) -> list[Wire]:
    """A conversation that was compacted so often."""
    history: list[Wire] = []
    for number in range(1, 20 * compactions):
        asked, call, result, answer = turn(number)
        for new in ([asked], [call, result]):
            history += new
            await said(weir, history)
        history.append(answer)
        if number % 5 == 0 and (await weir.stored())["compaction"] >= compactions:
            return history
    raise AssertionError("too few compactions")


async def said(weir: Gate, history: list[Wire]) -> None:
    answer = await weir.ask(history, model="clerk", headers={"x-session-id": "talk"})
    assert answer.status == 200, answer.body


async def everything(weir: Gate, names: set[str]) -> dict[str, str | None]:
    """What stands under `names`, and under those that these texts name, and so on."""
    scope = chain.scope(await weir.store.secret("scope"), "local", "open", None)
    found: dict[str, str | None] = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = text = await weir.store.result("local", scope, name)
            waiting += _REFERENCE.findall(text or "")
    return found


def wholes(history: list[Wire]) -> Iterator[str]:
    return (item["content"] for item in history if item["role"] == "tool")


async def prove(arm: str, compactions: int, folder: Path, figure: Figure) -> None:
    model = Model()
    strict = StrictUpstream(window=WINDOW, answer=model.says)
    policy = f"window: {WINDOW}\nsummary: {{model: {'null' if arm == 'window' else 'false'}}}\n"
    told = {"window": WINDOW, "policy": policy, "folder": folder, "file": folder / "w.db", **agents(ARMS[arm])}
    async with ScriptedUpstream(strict) as up:
        async with gate(up.url, **told) as weir:
            history = await talked(weir, compactions)
            made = (await weir.stored())["compaction"]
        up.ledger.clear()
        async with gate(up.url, **told) as weir:
            history.append(user("And what did the notes refer to?"))
            await said(weir, history)
            prompt = "\n".join(map(shown, up.ledger[-1].request.messages))
            named = set(_REFERENCE.findall(prompt))
            model.wanted = [(name, 0) for name in sorted(named)]
            for _ in range(200):
                history += [assistant("Well."), user("Go on reading.")]
                await said(weir, history)
                if not model.wanted:
                    break
            behind = await everything(weir, named)
    texts = set(wholes(history))
    pages = {name for name, text in behind.items() if text is not None and text not in texts}
    whole = [name for name in named if name in model.read and (model.read[name] in texts or name in pages)]
    same = [name for name in whole if model.read[name] == behind[name]]
    had = texts & {text for text in behind.values() if text is not None}
    covered = [text for text in texts if text not in prompt]
    lost = [name for name, text in behind.items() if text is None]
    print(f"{arm}: {made} compactions, {len(named)} references in the prompt, {len(behind)} behind them")
    figure.all(
        (
            f"references after {compactions} compactions ({arm}), read whole by the model",
            len(same) / len(named),
            ">= 0.99",
        ),
        (
            f"references after {compactions} compactions ({arm}), all that lie behind",
            1 - len(lost) / len(behind),
            ">= 0.99",
        ),
        (
            f"references after {compactions} compactions ({arm}), results that are not told whole",
            len(had & set(covered)) / len(covered),
            ">= 0.99",
        ),
        (f"references after {compactions} compactions ({arm}), malformed prompts", len(strict.violations), "== 0"),
    )
    assert made >= compactions and len(named) > 1


@pytest.mark.parametrize("arm", ARMS)
async def test_what_notes_refer_to_is_there_after_twenty_compactions(arm: str, tmp_path: Path, figure: Figure) -> None:
    await prove(arm, 20, tmp_path, figure)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arm", ARMS)
async def test_what_notes_refer_to_is_there_after_a_hundred(arm: str, tmp_path: Path, figure: Figure) -> None:
    await prove(arm, 100, tmp_path, figure)
