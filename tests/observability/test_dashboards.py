"""The committed dashboards are what the code gives, Grafana's own types accept them, and panels ask for what exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grafana.generate import BOARDS, FOLDER, files, main
from grafana.panels import Panel, filled
from proxy.metrics import Metrics
from tests.data import ROOT
from tests.observability.conftest import NODE

_NAME = re.compile(r"\bweirgate_[a-z_]+")
_KINDS = {
    "timeseries": "timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen",
    "stat": "stat/panelcfg/x/StatPanelCfg_types.gen",
    "bargauge": "bargauge/panelcfg/x/BarGaugePanelCfg_types.gen",
    "heatmap": "heatmap/panelcfg/x/HeatmapPanelCfg_types.gen",
}
# An enumeration of theirs is a string in JSON; the type of a value that is written out is its strings.
_HEAD = """import type { Dashboard, Panel, RowPanel } from "@grafana/schema";
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
    : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""


def exported() -> set[str]:
    """The names of every series that the gateway can export, and the labels that each has."""
    found = set()
    for kind, family in Metrics()._families:
        endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[kind]
        found |= {f"{family.name}{ending}" for ending in endings}
    return found


def panels() -> list[Any]:
    return [pytest.param(panel, id=f"{board.uid}: {panel.title}") for board in BOARDS for panel in board.panels]


def test_the_committed_dashboards_are_what_the_code_gives() -> None:
    assert main(["--check"]) == 0
    assert sorted(path.name for path in FOLDER.glob("*.json")) == sorted(files())


@pytest.mark.parametrize("panel", panels())
def test_a_panel_asks_for_series_that_exist_and_says_what_it_shows(panel: Panel) -> None:
    for query in panel.queries:
        names = set(_NAME.findall(query.expr))
        assert names and names <= exported(), names - exported()
        left = filled(query, rate="1m", range="1h")
        assert "$" not in left
    assert panel.about.endswith(".") and len(panel.about) > 15


def test_every_metric_is_shown_or_rests_in_a_rule() -> None:
    told = " ".join(query.expr for board in BOARDS for panel in board.panels for query in panel.queries)
    told += " ".join(path.read_text() for path in (ROOT / "grafana" / "rules").glob("*.yaml"))
    names = set(_NAME.findall(told))
    unseen = {
        family.name
        for _, family in Metrics()._families
        if not any(name.startswith(family.name) and name.removeprefix(family.name) in _ENDINGS for name in names)
    }
    assert unseen == {"weirgate_config_reloads", "weirgate_config_last_reload_success_timestamp_seconds"}


_ENDINGS = ("", "_total", "_bucket", "_sum", "_count")


def test_the_page_on_observability_lists_every_metric_with_its_labels() -> None:
    page = (ROOT / "docs" / "observability.md").read_text().splitlines()
    missing = []
    for kind, family in Metrics()._families:
        name = f"`{family.name}{'_total' if kind == 'counter' else ''}`{'' if kind == 'counter' else f' ({kind})'}"
        line = f"| {name} | {', '.join(f'`{label}`' for label in family.names)} | {family.about} |"
        if line not in page:
            missing.append(line)
    assert missing == [], "lines for docs/observability.md"


def test_every_picture_of_the_page_is_there_and_small() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    named = set(re.findall(r"\]\((observability/[a-z-]+\.png)\)", page))
    drawn = {f"observability/{path.name}": path.stat().st_size for path in (ROOT / "docs/observability").glob("*.png")}
    assert named == drawn.keys() and len(named) == 9
    assert {name: size for name, size in drawn.items() if size > 60_000} == {}


def test_a_board_has_an_address_of_its_own_and_rows_that_fill_the_width() -> None:
    assert len({board.uid for board in BOARDS}) == len(BOARDS) == 4
    for board in BOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles)
        for row in board.rows:
            assert sum(panel.width for panel in row.panels) == 24, (board.uid, row.title)
        made = json.loads((FOLDER / f"{board.uid.removeprefix('weirgate-')}.json").read_text())
        assert made["uid"] == board.uid and made["schemaVersion"] == 41
        ids = [panel["id"] for panel in made["panels"]]
        assert sorted(set(ids)) == ids


def checked(tsc: str, folder: Path, boards: list[dict[str, Any]]) -> tuple[int, str]:
    """Exit status and words of the compiler for dashboards written out as values of Grafana's own types."""
    lines = [_HEAD]
    for kind, place in _KINDS.items():
        lines.append(f'import type {{ Options as {kind} }} from "@grafana/schema/dist/esm/raw/composable/{place}";\n')
    for number, board in enumerate(boards):
        lines.append(f"export const board{number}: Plain<Dashboard> = {json.dumps(board)};\n")
        for panel in board["panels"]:
            name, kind = f"{number}_{panel['id']}", panel["type"]
            lines.append(f"export const p{name}: Plain<{'RowPanel' if kind == 'row' else 'Panel'}> = ")
            lines.append(f"{json.dumps(panel)};\n")
            if kind != "row":
                lines.append(f"export const o{name}: Partial<Plain<{kind}>> = {json.dumps(panel['options'])};\n")
    written = folder / "boards.ts"
    written.write_text("".join(lines))
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    options = ("--noEmit", "--skipLibCheck", "--strict", "--module", "esnext", "--moduleResolution", "node10")
    done = subprocess.run(
        [tsc, *options, str(written)], cwd=folder, capture_output=True, text=True, timeout=55, check=False
    )
    return done.returncode, done.stdout[-3000:]


def test_grafanas_own_types_accept_every_dashboard(tsc: str, tmp_path: Path) -> None:
    assert checked(tsc, tmp_path, [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]) == (0, "")


def test_grafanas_own_types_refuse_what_is_wrong(tsc: str, tmp_path: Path) -> None:
    board = json.loads((FOLDER / "overview.json").read_text())
    board["panels"][1]["gridPos"]["h"] = "8"
    board["panels"][1]["options"]["legend"]["displayMode"] = "sideways"
    board["panels"][2]["targetz"] = []
    status, said = checked(tsc, tmp_path, [board])
    assert status != 0 and len(set(re.findall(r"error TS\d+", said))) >= 2, said


def test_a_dashboard_that_is_not_current_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("grafana.generate.FOLDER", tmp_path)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "store.json").write_text("{}")
    (tmp_path / "older.json").write_text("{}")
    assert main(["--check"]) == 1
