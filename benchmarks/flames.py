"""Folded stacks drawn as a flame graph: plain SVG text, no library and no script.

A frame is as wide as its share of all samples, and stands on who called it; frames too narrow to be seen are left out.
What a frame is, and its share, is told by its title, which a browser shows under the pointer. The same stacks always
give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from benchmarks.budget import STAGES, stage_of

WIDTH: Final = 1200
ROW: Final = 17
LEAST: Final = 0.002
"""Share below which a frame is not drawn: two pixels."""
_LETTER: Final = 6.4
_MARGIN: Final = 30
_LEGEND: Final = 16
_HUES: Final = {stage.name: place * 360 // len(STAGES) for place, stage in enumerate(STAGES)}


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """`start` and `share` of all samples; `depth` counts from the outermost; `stage` is whose it is."""

    name: str
    stage: str
    depth: int
    start: float
    share: float


def frames(stacks: Mapping[str, int]) -> tuple[Frame, ...]:
    """What is wide enough to be seen, callers before those they call, by name beside each other."""
    whole = sum(stacks.values()) or 1
    found: list[Frame] = []
    standing: list[tuple[tuple[str, ...], int]] = []  # frames of the last stack, and how much came before each
    came = 0
    for stack, used in [*sorted((tuple(stack.split(";")), used) for stack, used in stacks.items()), ((), 0)]:
        while standing and standing[-1][0] != stack[: len(standing)]:
            path, before = standing.pop()
            share = (came - before) / whole
            if share >= LEAST:
                stage = stage_of(";".join(path))
                found.append(Frame(name=path[-1], stage=stage, depth=len(standing), start=before / whole, share=share))
        standing += ((stack[: depth + 1], came) for depth in range(len(standing), len(stack)))
        came += used
    return tuple(sorted(found, key=lambda frame: (frame.depth, frame.start)))


def flame_graph(title: str, stacks: Mapping[str, int]) -> str:
    """The picture."""
    drawn = frames(stacks)
    rows = 1 + max((frame.depth for frame in drawn), default=0)
    stages = [stage.name for stage in STAGES if any(frame.stage == stage.name for frame in drawn)]
    top = _MARGIN + _LEGEND * len(stages) + 10
    height = top + rows * ROW + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace"',
        ' font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-size="15">{escape(title)}</text>',
    ]
    for place, name in enumerate(stages):
        y = _MARGIN + _LEGEND * place
        lines.append(f'<rect x="8" y="{y}" width="11" height="11" fill="{_fill(name)}"/>')
        lines.append(f'<text x="25" y="{y + 10}">{escape(name)}</text>')
    lines += [_drawn(frame, top + (rows - 1 - frame.depth) * ROW) for frame in drawn]
    return "\n".join([*lines, "</svg>", ""])


def _drawn(frame: Frame, y: int) -> str:
    x, width = frame.start * WIDTH, frame.share * WIDTH
    fits = int((width - 6) / _LETTER)
    name = frame.name.rpartition(":")[2]
    told = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(name[:fits])}</text>' if fits >= 3 else ""
    place = f'x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}"'
    box = f'<rect {place} fill="{_fill(frame.stage)}"/>'
    return f"<g><title>{escape(frame.name)}: {frame.share:.1%}</title>{box}{told}</g>"


def _fill(stage: str) -> str:
    return f"hsl({_HUES[stage]},65%,76%)"
