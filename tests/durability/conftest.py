"""Figures of this room, printed where they are made and again at the end; `slow` is left out unless asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.scenarios.conftest import figure, pytest_collection_modifyitems

__all__ = ["compiled", "figure", "pytest_collection_modifyitems"]


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The gateway is started some thirty times here; where Python may not keep what it compiled, that is most of it."""
    with pytest.MonkeyPatch.context() as environment:
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            environment.delenv("PYTHONDONTWRITEBYTECODE")
            environment.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield
