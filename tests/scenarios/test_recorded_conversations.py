"""Real conversations, replayed message by message through windows that are far too small for them.

Three passes through one gateway for each window: the first is judged, the second and the third must change nothing.
The fast selection is every second short conversation and parts of the long ones, cold in the middle of a history too;
`make slow` plays them all.
"""

from __future__ import annotations

import pytest

from benchmarks.retention import DEFINITIONS
from tests import data
from tests.fakes import ScriptedUpstream
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import gate
from tests.scenarios.replaying import Player, Tape, is_cut

pytestmark = pytest.mark.data

RECALL = {4_000: 0.75, 8_000: 0.96, 32_000: 0.995}
"""The issue's bars, held to the sum over all identifiers: by the selection and by all conversations."""
KEPT = ("conversation", "reply", "compaction", "hidden", "result")
PARTS = {
    "specstory-2026-06-18-14-52-09": range(600, 624),
    "cursor-pt-plano": range(44),
    "pi-refactor-full": range(300, 324),
    "aider-day-20240809": range(50),
    "specstory-2026-07-20-13-11-09": range(40),
    "openhands-ponylang__ponyc-4595": range(40),
    "tau-airline-2-1": range(44),
}


def selection() -> list[Tape]:
    """Parts of long conversations, and half of the short ones."""
    rows = list(data.conversations())
    short = [row for row in rows if row.id not in PARTS and len(row.messages) <= 110][::2]
    return [Tape(row, PARTS[row.id]) for row in rows if row.id in PARTS] + [Tape(row) for row in short]


async def prove(tapes: list[Tape], window: int, recall: float, figure: Figure, name: str) -> None:
    player = Player(window)
    async with ScriptedUpstream(player.strict) as up, gate(up.url, window=window) as weir:
        first = await player.play(tapes, weir, up)
        before = await weir.stored()
        for tape in tapes:  # what was refused, rightly, left nothing that could be repeated
            tape.steps = [at for at in tape.steps if first.bodies[tape.id, at]]
        again = [await player.play(tapes, weir, up, judge=False) for _ in range(2)]
        after = await weir.stored()
    name = f"{name} at {window}"
    print(
        f"{name}: {first.steps} steps, {before['compaction']} compactions, {first.floors} floors, "
        f"{first.repaired} repairs, requests {first.verbatim} verbatim, {first.cut} cut, {first.counted} counted"
    )
    changed = [step for each in again for step, body in each.bodies.items() if body != first.bodies[step]]
    for each in (*first.overflows, *first.lost, *first.broken, *changed)[:20]:
        print(f"  {each}")
    figure.all(
        (f"{name}: malformed prompts", len(player.strict.violations), "== 0"),
        (f"{name}: overflows of the client", len(first.overflows), "== 0"),
        (f"{name}: requests lost", len(first.lost), "== 0"),
        (f"{name}: prefix", first.extended / max(1, first.comparable), ">= 0.99"),
        (f"{name}: prompts that a replay changed", len(changed), "== 0"),
        (f"{name}: rows that a replay added", sum(after[table] - before[table] for table in KEPT), "== 0"),
        (f"{name}: identifiers, sum", first.recall(), f">= {recall}"),
        (f"{name}: identifiers, mean of steps", first.recall_of_steps(), f">= {RECALL[window]}"),
        *((f"{name}: identifiers ({kind})", first.recall(n), ">= 0") for n, (kind, _) in enumerate(DEFINITIONS) if n),
    )
    assert before["compaction"] > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("window", RECALL)
async def test_recorded_conversations_keep_going(window: int, figure: Figure) -> None:
    await prove(selection(), window, RECALL[window], figure, "selection")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("window", RECALL)
async def test_all_recorded_conversations_keep_going(window: int, figure: Figure) -> None:
    await prove([Tape(row) for row in data.conversations()], window, RECALL[window], figure, "all")


def test_the_judge_of_cuts_believes_only_true_marks() -> None:
    text = "".join(f"word{number} " for number in range(200)).strip()
    mark = "\n[... {} characters were left out here by the gateway ...]\n"
    gone = len(text) - 60 - 40
    assert is_cut(text, f"before {text[:60]}{mark.format(gone)}{text[-40:]} after")
    assert not is_cut(text, f"before {text[:60]}{mark.format(gone - 1)}{text[-40:]} after")
    assert not is_cut(text, f"before {text[:60]}{mark.format(gone)}{text[-41:-1]} after")
    assert not is_cut(text, f"before {text[:60]} {text[-40:]} after")
