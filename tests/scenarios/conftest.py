"""Figures that scenarios prove, printed where they are made and again at the end; and the long versions left out.

`figure("name", value, ">= 0.98")` prints one line and fails the test where the bar is missed. Scenarios marked `slow`
run only where the marker expression names them (`make slow`).
"""

from __future__ import annotations

import operator

import pytest

_BARS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


class Figure:
    """Prints figures against their bars ("<= 3", ">= 0.98", "== 0"), and hands them to the summary (tests/conftest.py)
    as properties of the test, which reach it from another process too."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def __call__(self, name: str, value: float, bar: str) -> None:
        self.all((name, value, bar))

    def all(self, *figures: tuple[str, float, str]) -> None:
        """All of them are printed before one fails."""
        made = [_line(*figure) for figure in figures]
        self._properties += [("figure", line) for line in made]
        print("\n".join(made))
        missed = [line for line in made if line.endswith("MISSED")]
        assert missed == []


def _line(name: str, value: float, bar: str) -> str:
    sign, stated = bar.split()
    holds = _BARS[sign](value, float(stated))
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"T-{name} value={shown} bar={sign}{float(stated):g} {'ok' if holds else 'MISSED'}"


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    return Figure(request.node.user_properties)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
