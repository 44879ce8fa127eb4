"""Draws what a rehearsal showed: every board, and the answers of docs/observability.md.

    python grafana/pictures.py OBSERVED.json FOLDER

Runs inside `.venv-pictures` (scripts/pictures.sh) and imports nothing of this repository. Grafana itself cannot be had
from a package registry, so this is how a reader of the docs sees what it will show. matplotlib, because it draws axes,
stacks and heat maps as people know them; nothing of the product needs it.
"""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

INCH = 0.55
"""One of 24 columns, in inches."""
TALL = 2.5
DOTS = 80
SHARES = (1.0, 0.75, 0.5, 0.25)
"""Of a colour: a line, an area, and two steps of their edges."""
STYLE_COLOURS = ("#f4f5f5", "#d0d4d8", "#eceef0", "#57606a", "#1f2328")
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff", "#fa6400", "#a352cc")
GOOD, BAD, BETWEEN = "#73bf69", "#f2495c", "#ff9830"
ANSWERS = {
    "who-spends": ("Cost an hour", "Spent by model"),
    "which-model-overflows": ("Overflows by model", "Window fill by model"),
    "does-compaction-pay": ("Net benefit by model", "Saved and spent an hour", "Tokens kept away"),
    "why-the-cache-missed": ("Cache hits", "Why the cache missed"),
    "which-upstream-is-slow": ("First token, half of the streams", "Between two tokens", "Whole calls"),
}
"""The panels that answer a question, by the name of its picture."""

Saved = dict[str, Any]

STYLE = {
    "figure.facecolor": "#f4f5f5",
    "axes.facecolor": "#ffffff",
    "axes.edgecolor": "#d0d4d8",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "grid.color": "#eceef0",
    "font.size": 7.5,
    "font.family": "DejaVu Sans",
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
}


def board_picture(board: Saved) -> Figure:
    """A whole board, row under row."""
    figure = plt.figure(figsize=(24 * INCH, 0.4 + (TALL + 0.45) * len(board["rows"])), dpi=DOTS)
    high = figure.get_figheight()
    figure.text(0.01, 1 - 0.2 / high, board["title"], size=12, weight="bold", va="center")
    top = high - 0.4
    for row in board["rows"]:
        figure.text(0.012, (top - 0.14) / high, row["title"], size=9, color="#57606a", va="center")
        _row(figure, row["panels"], top - 0.28, high)
        top -= TALL + 0.45
    return figure


def answer_picture(panels: list[Saved]) -> Figure:
    """A few panels beside each other."""
    figure = plt.figure(figsize=(24 * INCH, TALL + 0.35), dpi=DOTS)
    wide = sum(panel["width"] for panel in panels)
    spread = [{**panel, "width": panel["width"] * 24 / wide} for panel in panels]
    _row(figure, spread, TALL + 0.3, TALL + 0.35)
    return figure


def _row(figure: Figure, panels: list[Saved], top: float, high: float) -> None:
    left = 0.0
    for panel in panels:
        bars = panel["kind"] == "bars"
        before = 1.15 if bars else 0.62
        below, over = 0.62 if panel["kind"] in ("lines", "stack") else 0.34, 0.28
        axes = figure.add_axes(
            (
                (left * INCH + before) / (24 * INCH),
                (top - TALL + below) / high,
                (panel["width"] * INCH - before - 0.2) / (24 * INCH),
                (TALL - below - over) / high,
            )
        )
        axes.set_title(panel["title"], x=-before / (panel["width"] * INCH - before - 0.2) + 0.02)
        _draw(axes, panel)
        left += panel["width"]


def _draw(axes: Axes, panel: Saved) -> None:
    series = [each for each in panel["series"] if each["points"]]
    if not series:
        raise SystemExit(f"{panel['title']}: nothing to draw")
    draw = {"lines": _lines, "stack": _stack, "number": _number, "heat": _heat, "bars": _bars}
    draw[panel["kind"]](axes, panel, series)


def _lines(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    for each in series:
        times, values = zip(*each["points"], strict=True)
        axes.plot(times, values, linewidth=1.2, label=each["name"])
    _over_time(axes, panel, series)


def _stack(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    times = sorted({at for each in series for at, _ in each["points"]})
    found = [dict(map(tuple, each["points"])) for each in series]
    axes.stackplot(times, [[each.get(at, 0.0) for at in times] for each in found], alpha=0.75, linewidth=0)
    for each, patch in zip(series, axes.collections, strict=True):
        patch.set_label(each["name"])
    _over_time(axes, panel, series)


def _over_time(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{int(at) // 60}:{int(at) % 60:02d}"))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: told(value, panel["unit"])))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0)
    if panel["floor"]:
        flat = not any(value for each in series for _, value in each["points"])
        axes.set_ylim(bottom=0, top=1 if flat else None)
    longest = max(len(each["name"]) for each in series)
    columns = max(1, min(len(series), int(panel["width"] * INCH / (0.35 + 0.055 * longest))))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.06, -0.12), ncols=columns, borderaxespad=0, handlelength=1.2)


def _heat(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    """Buckets count everything up to their bound: what lies between two is their difference."""
    ordered = sorted(series, key=lambda each: math.inf if each["name"] == "+Inf" else float(each["name"]))
    times = [at for at, _ in ordered[0]["points"]]
    found = [dict(map(tuple, each["points"])) for each in ordered]
    rows, before = [], dict.fromkeys(times, 0.0)
    for each in found:
        rows.append([max(0.0, each.get(at, 0.0) - before[at]) for at in times])
        before = {at: each.get(at, 0.0) for at in times}
    axes.pcolormesh([*times, times[-1] + 2], range(len(rows) + 1), rows, cmap="Blues", shading="flat")
    axes.set_yticks(range(1, len(rows) + 1, 2), [told_bound(each["name"]) for each in ordered[::2]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{int(at) // 60}:{int(at) % 60:02d}"))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False)


def _bars(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    names = [each["name"] for each in reversed(series)]
    values = [each["points"][-1][1] for each in reversed(series)]
    colours = [BAD if value < 0 else COLOURS[2] for value in values]
    axes.barh(names, values, color=colours, height=0.6)
    for place, value in enumerate(values):
        axes.annotate(
            told(value, panel["unit"]), (max(value, 0), place), (3, 0), textcoords="offset points", va="center"
        )
    axes.margins(x=0.25)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)


def _number(axes: Axes, panel: Saved, series: list[Saved]) -> None:
    axes.axis("off")
    value, good, bad = series[0]["points"][-1][1], panel["good"], panel["bad"]
    colour = "#1f2328"
    if good is not None and bad is not None:
        fine, awful = (value >= good, value < bad or value == bad == 0) if bad < good else (value <= good, value >= bad)
        colour = GOOD if fine else BAD if awful else BETWEEN
    axes.text(0.5, 0.55, told(value, panel["unit"]), size=22, weight="bold", color=colour, ha="center", va="center")
    axes.text(0.5, 0.15, series[0]["name"], color="#57606a", ha="center")


def told(value: float, unit: str) -> str:
    """A value as Grafana would write it."""
    match unit:
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "currencyUSD":
            return f"{'-' if value < 0 else ''}${abs(value):.3g}"
        case "s":
            return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
        case "reqps":
            return f"{value:.3g}/s"
    for bound, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{letter}"
    return f"{value:.3g}"


def told_bound(name: str) -> str:
    return "over" if name == "+Inf" else f"{100 * float(name):.0f} %"


def kept(figure: Figure, file: Path) -> None:
    """Save it small: a picture of lines needs few colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    drawn.seek(0)
    Image.open(drawn).convert("RGB").quantize(palette=_palette(), dither=Image.Dither.NONE).save(file, optimize=True)


def _palette() -> Image.Image:
    """Every colour that is drawn with, whole and in steps towards white: few, for small files, and those of thin
    lines among them."""
    paper = (1.0, 1.0, 1.0)
    steps = [tuple(share * part + 1 - share for part in to_rgb(colour)) for colour in COLOURS for share in SHARES]
    ink = [tuple(value / 23 for _ in range(3)) for value in range(24)]
    heat = [mpl.colormaps["Blues"](value / 23)[:3] for value in range(24)]
    flat = [to_rgb(colour) for colour in (*STYLE_COLOURS, GOOD, BAD, BETWEEN)]
    found = [round(255 * part) for colour in (paper, *steps, *ink, *heat, *flat) for part in colour]
    palette = Image.new("P", (1, 1))
    palette.putpalette(found)
    return palette


def main(observed: str, folder: str) -> None:
    boards = json.loads(Path(observed).read_text(encoding="utf-8"))["boards"]
    panels = {panel["title"]: panel for board in boards for row in board["rows"] for panel in row["panels"]}
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for board in boards:
            kept(board_picture(board), place / f"{board['uid'].removeprefix('weirgate-')}.png")
        for name, titles in ANSWERS.items():
            kept(answer_picture([panels[title] for title in titles]), place / f"{name}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
