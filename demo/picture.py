"""Draws `docs/picture.svg` from what a demo run saved: `make demo ARGS=--save`, then `python demo/picture.py`.

Plain SVG text, no library: a panel of its own, so that it reads on a light and on a dark page, with a title and a
description for those who hear it. The same data always give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from demo.talk import Spoken, compacted

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "demo" / "data.json"
PICTURE = ROOT / "docs" / "picture.svg"

WIDTH, HEIGHT = 960, 430
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 92, 56

STYLE = """
    .panel { fill: #ffffff; stroke: #d0d7de }
    .grid { stroke: #d8dee4; stroke-width: 1 }
    .words { fill: #1f2328; font: 14px system-ui, sans-serif }
    .small { fill: #57606a; font: 12px system-ui, sans-serif }
    .head { fill: #1f2328; font: 600 17px system-ui, sans-serif }
    .limit { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 2 4 }
    .direct { stroke: #c2410c; stroke-width: 2.5; fill: none; stroke-dasharray: 7 4 }
    .lost { stroke: #c2410c; stroke-width: 2.5; stroke-linecap: round }
    .said-direct { fill: #c2410c; font: 600 14px system-ui, sans-serif }
    .weir { stroke: #0969da; stroke-width: 3; fill: none; stroke-linejoin: round }
    .water { fill: #0969da; opacity: 0.10 }
    .said-weir { fill: #0969da; font: 600 14px system-ui, sans-serif }
    .drop { fill: #0969da }
    @media (prefers-color-scheme: dark) {
      .panel { fill: #0d1117; stroke: #30363d }
      .grid { stroke: #21262d }
      .words, .head { fill: #e6edf3 }
      .small { fill: #9198a1 }
      .limit { stroke: #9198a1 }
      .direct, .lost { stroke: #ff9b66 }
      .said-direct { fill: #ff9b66 }
      .weir { stroke: #58a6ff }
      .water, .said-weir, .drop { fill: #58a6ff }
      .water { opacity: 0.16 }
    }
"""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A saved demo run."""

    model: str
    window: int
    turns: int
    direct: tuple[Spoken, ...]
    weirgate: tuple[Spoken, ...]


def _x(run: Run, number: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (number - 1) / max(1, run.turns - 1), 1)


def _y(run: Run, tokens: int) -> float:
    """The window's limit stands a tenth below the top, so that what is over it can be seen."""
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * 0.9 * min(tokens, run.window * 1.1) / run.window, 1)


def _points(run: Run, spoken: Sequence[Spoken]) -> str:
    return " ".join(f"{_x(run, one.number)},{_y(run, one.tokens)}" for one in spoken)


def _text(x: float, y: float, kind: str, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def answered(spoken: Sequence[Spoken]) -> int:
    return sum(one.answered for one in spoken)


def _description(run: Run, drops: Sequence[int]) -> str:
    lost = [one.number for one in run.direct if not one.answered]
    until = f"from turn {lost[0]} on the model refuses it" if lost else "it fits the window"
    at = ", ".join(map(str, drops)) or "no turn"
    return (
        f"Tokens in the window of {run.model} ({run.window:,} tokens) over {run.turns} turns. "
        f"Sent directly, the conversation grows turn by turn: {until}; "
        f"{answered(run.direct)} of {run.turns} turns are answered. "
        f"Through Weirgate it is compacted at turn {at} and stays inside; "
        f"{answered(run.weirgate)} of {run.turns} turns are answered."
    )


def _axes(run: Run) -> Iterator[str]:
    for quarter in range(5):
        tokens = run.window * quarter // 4
        y = _y(run, tokens)
        kind = "limit" if quarter == 4 else "grid"
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="{kind}"/>'
        yield _text(LEFT - 10, y + 4, "small", f"{tokens:,}", "end")
    for number in sorted({1, *range(5, run.turns + 1, 5), run.turns}):
        yield _text(_x(run, number), HEIGHT - BOTTOM + 20, "small", str(number), "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "small", "user turn", "middle")
    yield _text(LEFT + 6, _y(run, run.window) - 8, "small", f"the model's window: {run.window:,} tokens")


def _weir(run: Run, drops: Sequence[int]) -> Iterator[str]:
    floor = _y(run, 0)
    points = _points(run, run.weirgate)
    first, last = _x(run, run.weirgate[0].number), _x(run, run.weirgate[-1].number)
    yield f'<polygon class="water" points="{first},{floor} {points} {last},{floor}"/>'
    yield f'<polyline class="weir" points="{points}"/>'
    for before, after in pairwise(run.weirgate):
        if after.number in drops:
            x, y = _x(run, after.number), _y(run, after.tokens)
            yield f'<path class="drop" d="M{x - 7} {y + 6} h14 l-7 11 z"/>'
            at, anchor = (WIDTH - RIGHT + 8, "end") if x > WIDTH - RIGHT - 50 else (x, "middle")
            yield _text(at, y + 36, "small", "compacted", anchor)
            yield _text(at, y + 52, "small", f"{before.tokens:,} → {after.tokens:,}", anchor)


def _direct(run: Run) -> Iterator[str]:
    yield f'<polyline class="direct" points="{_points(run, [one for one in run.direct if one.answered])}"/>'
    y = _y(run, round(run.window * 1.05))
    lost = [one.number for one in run.direct if not one.answered]
    if lost:
        yield _text(_x(run, lost[0]) - 14, y + 5, "said-direct", "refused", "end")
    for one in run.direct:
        if not one.answered:
            x = _x(run, one.number)
            yield f'<path class="lost" d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10"/>'


def draw(run: Run) -> str:
    """The whole picture as SVG text."""
    drops = [one.number for one in compacted(run.weirgate)]
    parts = [
        f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        _text(LEFT - 44, 32, "head", f"One conversation of {run.turns} turns, a window of {run.window:,} tokens"),
        _text(LEFT - 44, 58, "said-weir", f"through Weirgate: {answered(run.weirgate)}/{run.turns} turns answered"),
        _text(LEFT + 330, 58, "said-direct", f"directly (dashed): {answered(run.direct)}/{run.turns} turns answered"),
        *_axes(run),
        *_weir(run, drops),
        *_direct(run),
    ]
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="title desc">\n'
        f'  <title id="title">How full the window is at each turn, directly and through Weirgate</title>\n'
        f'  <desc id="desc">{escape(_description(run, drops))}</desc>\n'
        f"  <style>{STYLE}  </style>\n  {body}\n</svg>\n"
    )


def load(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)


def main() -> int:
    if not DATA.exists():
        print("no demo/data.json: run `make demo ARGS=--save` first", file=sys.stderr)
        return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(load(DATA)), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
