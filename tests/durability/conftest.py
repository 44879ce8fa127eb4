"""Figures of this room, printed where they are made and again at the end; what is `slow` is left out unless asked for."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import Figure, pytest_collection_modifyitems

__all__ = ["figure", "pytest_collection_modifyitems", "pytest_terminal_summary"]

_lines = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    return Figure(request.config.stash.setdefault(_lines, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_lines, [])
    if lines:
        terminalreporter.write_sep("=", "durability")
        for line in lines:
            terminalreporter.write_line(line)
