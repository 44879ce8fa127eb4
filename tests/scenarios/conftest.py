"""Figures that scenarios prove, printed where they are made and again at the end; and the long versions left out.

`figure("name", value, ">= 0.98")` prints one line and fails the test where the bar is missed. Scenarios marked `slow`
run only where the marker expression names them (`make slow`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest

Figure = Callable[[str, float, str], None]

_lines = pytest.StashKey[list[str]]()
_BARS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Print `value` against its `bar` ("<= 3", ">= 0.98", "== 0"), and hold it."""
    lines = request.config.stash.setdefault(_lines, [])

    def show(name: str, value: float, bar: str) -> None:
        sign, stated = bar.split()
        holds = _BARS[sign](value, float(stated))
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        line = f"T-{name} value={shown} bar={sign}{stated} {'ok' if holds else 'MISSED'}"
        lines.append(line)
        print(line)
        assert holds, line

    return show


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_lines, [])
    if lines:
        terminalreporter.write_sep("=", "figures")
        for line in lines:
            terminalreporter.write_line(line)
