"""Figures of this room, printed where they are made and again at the end; `slow` is left out unless asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.scenarios.conftest import Figure, pytest_collection_modifyitems

__all__ = ["compiled", "figure", "pytest_collection_modifyitems", "pytest_terminal_summary"]

_lines = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The gateway is started some thirty times here; where Python may not keep what it compiled, that is most of it."""
    with pytest.MonkeyPatch.context() as environment:
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            environment.delenv("PYTHONDONTWRITEBYTECODE")
            environment.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    return Figure(request.config.stash.setdefault(_lines, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_lines, [])
    if lines:
        terminalreporter.write_sep("=", "durability")
        for line in lines:
            terminalreporter.write_line(line)
