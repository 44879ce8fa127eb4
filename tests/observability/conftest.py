"""Prometheus and Grafana's types, where they are installed (`make boards`); in CI they must be."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import IN_CI
from tests.data import ROOT
from tests.scenarios.conftest import figure

__all__ = ["figure"]

NODE = ROOT / "tests" / "observability" / "node"


def _needed(there: bool, reason: str) -> None:
    if there:
        return
    if IN_CI:
        pytest.fail(f"{reason}; in CI it must be")
    pytest.skip(reason)


@pytest.fixture
def promtool() -> str:
    _needed(shutil.which("promtool") is not None, "promtool is not installed (make boards)")
    return "promtool"


@pytest.fixture
def prometheus_there() -> None:
    _needed(shutil.which("prometheus") is not None, "prometheus is not installed (make boards)")


@pytest.fixture
def tsc() -> str:
    compiler = NODE / "node_modules" / ".bin" / "tsc"
    _needed(compiler.exists() and shutil.which("node") is not None, "Grafana's types are not installed (make boards)")
    return str(compiler)
