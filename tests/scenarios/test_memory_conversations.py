"""Every recorded conversation with memory on, through the core: the limits of memory, as figures."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.memory_cost import TARIFFS, messages_of, played
from proxy.core.agent import MemoryLimits
from proxy.core.own_compaction import asks_for_summary
from proxy.core.pacing import SLACK
from tests import data
from tests.remembering import KINDS, faults, parted_faults, shape_faults
from tests.scenarios.conftest import Figure

pytestmark = pytest.mark.data


def prove(figure: Figure, name: str, most: int, windows: tuple[int | None, ...] = (None,)) -> None:
    cached = TARIFFS[1][1]
    arms = (
        ("step 1", MemoryLimits(step=1), 0),
        ("step 5", MemoryLimits(step=5), 4),
        ("when it pays", MemoryLimits(), SLACK),
    )
    for arm, limits, beyond in arms:
        found: Counter[str] = Counter()
        calls = conversations = trimmed = 0
        for row in data.conversations():
            messages = messages_of(row)
            at = [place for place, item in enumerate(messages) if place and item.role == "assistant"]
            if not at:
                continue
            conversations += 1
            steps = at[:: max(1, len(at) // most)]
            for window in windows:
                for each in played(messages, limits, cached, window=window, steps=steps):
                    if asks_for_summary(each.shown):
                        continue  # it reads everything
                    calls += 1
                    trimmed += not each.prompt.untouched
                    for fault in faults(each, limits, beyond=beyond):
                        found[fault.split(":")[0]] += 1
                        print(f"  {row.id} at {each.at}: {fault}")
        print(f"{name}, {arm}: {conversations} conversations, {calls} prompts, {trimmed} of them dressed")
        figure.all(*((f"{name}, {arm}: {kind}", found[kind], "== 0") for kind in KINDS))


def prove_alternating(figure: Figure, name: str, most: int) -> None:
    """Where a model takes no two messages of one role in a row, notes, requests and turns are merged."""
    found: Counter[str] = Counter()
    calls = 0
    for row in data.conversations():
        messages = messages_of(row)
        at = [place for place, item in enumerate(messages) if place and item.role == "assistant"]
        for each in played(messages, MemoryLimits(step=1), alternate=True, steps=at[:: max(1, len(at) // most)]):
            calls += 1
            for fault in (*shape_faults(each.prompt.messages), *parted_faults(each.prompt.messages)):
                found[fault.split(":")[0]] += 1
                print(f"  {row.id} at {each.at}: {fault}")
    print(f"{name}: {calls} prompts")
    figure.all(*((f"{name}: {kind}", found[kind], "== 0") for kind in ("shape", "ids", "neighbours")))


@pytest.mark.timeout(240)
def test_the_limits_of_memory_hold_on_real_conversations(figure: Figure) -> None:
    prove(figure, "memory", 12)


@pytest.mark.timeout(240)
def test_prompts_that_must_alternate_do(figure: Figure) -> None:
    prove_alternating(figure, "memory, alternating", 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_limits_of_memory_hold_at_every_call_and_in_small_windows(figure: Figure) -> None:
    prove(figure, "memory, every call", 100_000, (None, 32_000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_prompts_that_must_alternate_do_at_every_call(figure: Figure) -> None:
    prove_alternating(figure, "memory, alternating, every call", 100_000)
