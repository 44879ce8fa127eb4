"""What holds for every test: recorded data is there or its absence is said aloud, and properties are repeatable.

Fixtures of one room belong into that room's own conftest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import data

if TYPE_CHECKING:
    from tests.postgres import Cluster

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")

# No deadline: the machine may be busy. No example database: two runs at once must not meet. In CI the examples are
# the same each time, so a red run is a changed program.
settings.register_profile("local", deadline=None, database=None)
settings.register_profile("ci", deadline=None, database=None, derandomize=True)
settings.load_profile("ci" if IN_CI else "local")

_ABSENT = "recorded data is absent"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("data")]
    if not needing or data.is_there():
        return
    where = f"{data.folder()} is absent (WEIRGATE_DATA names another place)"
    if IN_CI:
        raise pytest.UsageError(f"{len(needing)} tests need the recorded data, and {where}; in CI that is an error")
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=_ABSENT))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server, one for each process that runs tests; its databases are the tests' to make."""
    from tests import postgres

    if (reason := postgres.absent()) is not None:
        pytest.skip(reason)
    with postgres.cluster() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def database_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """A server for the tests of the whole application, where they are to run on one."""
    from tests import engine

    if not engine.wanted():
        yield
        return
    with engine.served(request.getfixturevalue("cluster")):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Read from the reports, which come from other processes too where tests run side by side."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    figures = [value for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.write_sep("=", "figures")
        for line in figures:
            terminalreporter.write_line(str(line))
    left_out = [report for report in terminalreporter.getreports("skipped") if _ABSENT in str(report.longrepr)]
    if left_out:
        terminalreporter.write_sep(
            "!", f"{len(left_out)} tests skipped: no recorded data at {data.folder()}", yellow=True
        )
