"""The gateway's own lines: one JSON object each, on whatever stderr is at that moment."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from proxy.logs import log


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_a_line_is_json_with_its_level_its_time_and_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    log("warning", "closed rows", rows=3, problems=["a", "b\nc"])
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    line = json.loads(said.err)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line.pop("timestamp"))).total_seconds()) < 60
    assert line == {"level": "warning", "event": "closed rows", "rows": 3, "problems": ["a", "b\nc"]}


def test_each_line_goes_to_stderr_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for event in ("first", "second"):
        taken = io.StringIO()
        monkeypatch.setattr("sys.stderr", taken)
        log("info", event)
        assert json.loads(taken.getvalue())["event"] == event


def test_a_form_that_somebody_else_chose_is_kept() -> None:
    with structlog.testing.capture_logs() as lines:
        log("error", "policies kept", problems=[])
    assert lines == [{"log_level": "error", "event": "policies kept", "problems": []}]
