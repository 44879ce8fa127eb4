"""Writes the boards as Grafana's JSON: `python -m grafana.generate`; with `--check`, says what is not current (exit 1).

The only file that knows Grafana. Its builders are pinned to the schema of one Grafana version in requirements/dev.txt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as words
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana import context, overview, store, upstreams
from grafana.panels import Board, Panel, Query

FOLDER: Final = Path(__file__).with_name("dashboards")
BOARDS: Final = (overview.BOARD, context.BOARD, upstreams.BOARD, store.BOARD)

_TALL: Final = 8
_SOURCE: Final = words.DataSourceRef(type_val="prometheus", uid="${datasource}")
_STRAY: Final = ("auto", "auto_min", "auto_count")
_VARIABLES: Final = (
    ("$jobs", 'job=~"$job"'),
    ("$models", 'model=~"$model"'),
    ("$upstreams", 'upstream=~"$upstream"'),
    ("$rate", "$__rate_interval"),
    ("$range", "$__range"),
)


def written(board: Board) -> str:
    """The board as Grafana reads it; equal boards give equal bytes."""
    made = dashboard.Dashboard(board.title).uid(board.uid).description(board.about).tags(["weirgate"])
    made = made.timezone("browser").time("now-3h", "now").refresh("30s").editable()
    made = made.tooltip(words.DashboardCursorSync.CROSSHAIR).link(_others())
    for variable in _variables(board):
        made = made.with_variable(variable)
    number = count(1)
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title).id(next(number)))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(next(number)))
    return json.dumps(_sound(json.loads(json.dumps(made.build(), cls=JSONEncoder))), indent=2) + "\n"


def _sound(value: Any) -> Any:
    """`value` without what the builders add that Grafana's own types do not know: members of other kinds of variables,
    and nulls, but for the lowest of the thresholds, which has no value."""
    if isinstance(value, dict):
        kept = ((name, inner) for name, inner in value.items() if name not in _STRAY)
        lowest = value.keys() == {"value", "color"}
        return {name: _sound(inner) for name, inner in kept if inner is not None or lowest}
    return [_sound(inner) for inner in value] if isinstance(value, list) else value


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Weirgate").type(words.DashboardLinkType.DASHBOARDS).tags(["weirgate"])
    return link.as_dropdown(True).include_vars(True).keep_time(True)


def _variables(board: Board) -> Iterator[Any]:
    yield dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    asked = [("job", "Job", "weirgate_build_info")]
    if board.by_model:
        asked.append(("model", "Model", 'weirgate_tokens_total{job=~"$job"}'))
    if board.by_upstream:
        asked.append(("upstream", "Upstream", 'weirgate_upstream_calls_total{job=~"$job"}'))
    for name, label, metric in asked:
        made = dashboard.QueryVariable(name).label(label).query(f"label_values({metric}, {name})").datasource(_SOURCE)
        made = made.refresh(words.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*")
        yield made.current(words.VariableOption(selected=True, text="All", value="$__all"))


def _panel(panel: Panel) -> Any:
    made = _looks(panel).title(panel.title).description(panel.about).datasource(_SOURCE)
    made = made.unit(panel.unit).height(_TALL).span(panel.width)
    for place, query in enumerate(panel.queries):
        made = made.with_target(_target(panel, query, chr(ord("A") + place)))
    return made


def _target(panel: Panel, query: Query, name: str) -> prometheus.Dataquery:
    expr = query.expr
    for ours, grafanas in _VARIABLES:
        expr = expr.replace(ours, grafanas)
    made = prometheus.Dataquery().expr(expr).ref_id(name).datasource(_SOURCE)
    if query.legend:
        made = made.legend_format("{{le}}" if panel.kind == "heat" else query.legend)
    if panel.kind in ("number", "bars"):
        return made.instant()
    return made.format(PromQueryFormat.HEATMAP).range() if panel.kind == "heat" else made.range()


def _looks(panel: Panel) -> Any:
    match panel.kind:
        case "number":
            made = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            if panel.good is None or panel.bad is None:
                return made.color_mode(shapes.BigValueColorMode.NONE)
            return made.thresholds(_bounds(panel.good, panel.bad)).color_scheme(_by_bounds())
        case "bars":
            made = bargauge.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            return made.display_mode(shapes.BarGaugeDisplayMode.BASIC).orientation(shapes.VizOrientation.HORIZONTAL)
        case "heat":
            made = heatmap.Panel().cell_gap(1).calculate(False)
            return made.color(
                heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
            )
        case "lines" | "stack":
            legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.LIST).show_legend(True)
            legend = legend.placement(shapes.LegendPlacement.BOTTOM).calcs([])
            made = timeseries.Panel().legend(legend).min(0) if panel.floor else timeseries.Panel().legend(legend)
            made = made.line_width(1).show_points(shapes.VisibilityMode.NEVER)
            made = made.tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI))
            if panel.kind == "lines":
                return made.fill_opacity(5)
            return made.fill_opacity(40).stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))


def _bounds(good: float, bad: float) -> dashboard.ThresholdsConfig:
    low, high = ("red", "green") if bad < good else ("green", "red")
    middle = (good, "orange") if bad > good else (bad, "orange")
    steps = [words.Threshold(value=None, color=low), words.Threshold(value=middle[0], color=middle[1])]
    steps.append(words.Threshold(value=max(good, bad), color=high))
    return dashboard.ThresholdsConfig().mode(words.ThresholdsMode.ABSOLUTE).steps(steps)


def _by_bounds() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(words.FieldColorModeId.THRESHOLDS)


def files() -> dict[str, str]:
    """The name and content of every dashboard file."""
    return {f"{board.uid.removeprefix('weirgate-')}.json": written(board) for board in BOARDS}


def stale() -> list[str]:
    """The files that are not what the code gives, or that no code gives."""
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    made = files()
    return sorted(name for name in there.keys() | made.keys() if there.get(name) != made.get(name))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grafana.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is not current")
    if parser.parse_args(arguments).check:
        for name in (old := stale()):
            print(f"{FOLDER.name}/{name} is not current: run python -m grafana.generate", file=sys.stderr)
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
