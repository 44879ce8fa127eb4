"""The rules are sound, each alert fires when it should and not else, and the page on them knows every one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.data import ROOT
from tests.observability.test_dashboards import _NAME, exported
from tests.scenarios.conftest import Figure

RULES = ROOT / "grafana" / "rules"
FILES = sorted(map(str, RULES.glob("*.yaml")))


def alerts() -> list[dict[str, object]]:
    groups = yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_accepts_the_rules(promtool: str) -> None:
    status, said = run(promtool, "check", "rules", *FILES)
    assert status == 0, said


def test_each_alert_fires_when_it_should_and_not_else(promtool: str, figure: Figure) -> None:
    status, said = run(promtool, "test", "rules", *map(str, sorted((RULES / "tests").glob("*.yaml"))))
    assert status == 0, said
    tested = (RULES / "tests" / "alerts.yaml").read_text()
    names = {str(rule["alert"]) for rule in alerts()}
    assert [name for name in names if name not in tested] == []
    figure("70 alerts whose rule was tested", len(names), ">= 8")


@pytest.mark.parametrize("file", FILES)
def test_a_rule_rests_on_series_that_exist(file: str) -> None:
    text = Path(file).read_text(encoding="utf-8")
    names = {name for name in _NAME.findall(text) if f"job:{name}" not in text}
    assert names - exported() == set()


def test_an_alert_says_how_urgent_it_is_and_what_to_look_at() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")  # type: ignore[index]
        assert rule["annotations"].keys() == {"summary", "description", "dashboard"}  # type: ignore[attr-defined]
        assert str(rule["alert"]) in page
