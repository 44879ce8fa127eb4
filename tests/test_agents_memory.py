"""The key `memory` of an agent: on unless it is switched off, each limit with its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.agent import MemoryLimits
from tests.test_agents import problems, read


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("off", None),
        ("false", None),
        ("null", None),
        ('"off"', None),
        ("on", MemoryLimits()),
        ("{turns: 5, calls: 0}", MemoryLimits(turns=5, calls=0)),
        ("{step: 1, leaving: drop}", MemoryLimits(step=1, leaving="drop")),
        (
            "{result_turns: 0, result_chars: 1000, argument_chars: 50}",
            MemoryLimits(result_turns=0, result_chars=1000, argument_chars=50),
        ),
    ],
)
def test_memory_is_on_unless_it_is_switched_off_and_each_limit_can_be_stated(
    tmp_path: Path, written: str, limits: MemoryLimits | None
) -> None:
    found = read(tmp_path, f"agents: {{a: {{model: fast, memory: {written}}}}}").named("a")
    assert found is not None
    assert found.memory == limits


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{turn: 3}", 'agents.a.memory.turn: unknown key; did you mean "turns"?'),
        ("{turns: 0}", "agents.a.memory.turns: should be greater than or equal to 1"),
        ("{result_chars: 10}", "agents.a.memory.result_chars: should be greater than or equal to 200"),
        ("{leaving: away}", "agents.a.memory.leaving: should be 'fold' or 'drop'"),
        ("never", "agents.a.memory: must be a mapping of keys"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_line(tmp_path: Path, written: str, said: str) -> None:
    (found,) = problems(tmp_path, f"agents:\n  a: {{model: fast, memory: {written}}}\n")
    assert found.startswith(f"weirgate.yaml:4: {said}")
