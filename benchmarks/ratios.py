"""What the figures are read for: ratios between contenders of the same run, each with a gate and a stretch.

An absolute number belongs to one machine in one hour; a ratio inside one run can be compared with last month's. A gate
is what must not get worse, a stretch what we aim at. None of this fails a test: noise may hide a gate, then the run is
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from benchmarks.measure import Row

# case name -> contender -> row
Results = Mapping[str, Mapping[str, Row]]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's figure over another contender's, in one case."""

    what: str
    case: str
    field: Literal["rps", "p50_us", "added_p50", "cpu_us", "chunk_cpu_us"]
    against: str
    gate: float
    stretch: float
    more_is_better: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    ratio: float

    @property
    def word(self) -> str:
        if _reached(self.ratio, self.target.stretch, self.target.more_is_better):
            return "stretch"
        return "gate" if _reached(self.ratio, self.target.gate, self.target.more_is_better) else "missed"


def _cpu(what: str, case: str, gate: float, stretch: float) -> Target:
    return Target(what=what, case=case, field="cpu_us", against="pass-through", gate=gate, stretch=stretch)


TARGETS = (
    _cpu("CPU per small call, 1 in flight", "small-1", 2.0, 1.25),
    _cpu("CPU per small call, 16 in flight", "small-16", 2.0, 1.25),
    _cpu("CPU per small call, 64 in flight", "small-64", 2.0, 1.25),
    _cpu("CPU, known 300 KB history", "300k-16", 2.5, 1.2),
    _cpu("CPU, known 2 MB history", "2m-1", 2.5, 1.2),
    _cpu("CPU, 2 MB grown by one message", "grown-1", 2.5, 1.2),
    Target(
        what="calls per second, small, 16 in flight",
        case="small-16",
        field="rps",
        against="nginx",
        gate=0.07,
        stretch=0.2,
        more_is_better=True,
    ),
    Target(
        what="added p50, small, 1 in flight", case="small-1", field="added_p50", against="nginx", gate=4.0, stretch=2.0
    ),
    Target(
        what="time of a burst of 200 chunks", case="burst-1", field="p50_us", against="nginx", gate=2.0, stretch=1.3
    ),
    Target(what="CPU per paced chunk", case="paced-100", field="chunk_cpu_us", against="nginx", gate=3.5, stretch=2.2),
)


def _reached(ratio: float, bound: float, more_is_better: bool) -> bool:
    return ratio >= bound if more_is_better else ratio <= bound


def _value(rows: Mapping[str, Row], contender: str, field: str) -> float:
    """0 where it was not measured."""
    row = rows.get(contender)
    if row is None or not row.samples:
        return 0.0
    if field != "added_p50":
        return float(getattr(row, field))
    direct = rows.get("direct")
    return row.p50_us - direct.p50_us if direct is not None and direct.samples else 0.0


def over(rows: Mapping[str, Row], contender: str, against: str, field: str) -> float | None:
    """One contender's figure divided by another's; None where either is missing."""
    mine, other = _value(rows, contender, field), _value(rows, against, field)
    return mine / other if mine > 0 and other > 0 else None


def verdicts(results: Results) -> tuple[Verdict, ...]:
    """The targets that this run could measure."""
    found: list[Verdict] = []
    for target in TARGETS:
        ratio = over(results.get(target.case, {}), "weirgate", target.against, target.field)
        if ratio is not None:
            found.append(Verdict(target=target, ratio=ratio))
    return tuple(found)
