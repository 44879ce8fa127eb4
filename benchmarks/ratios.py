"""What the figures are read for: ratios between contenders of the same run.

An absolute number belongs to one machine in one hour; a ratio inside one run can be compared with last month's. The
gates that some of them have stand in gates.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from benchmarks.measure import Row

# case name -> contender -> row
Results = Mapping[str, Mapping[str, Row]]
Figure = Literal["rps", "p50_us", "added_p50", "cpu_us", "chunk_cpu_us"]


def value(rows: Mapping[str, Row], contender: str, figure: Figure) -> float:
    """0 where it was not measured. `added_p50` is what the contender adds to the upstream's own median."""
    row = rows.get(contender)
    if row is None or not row.samples:
        return 0.0
    if figure != "added_p50":
        return float(getattr(row, figure))
    direct = rows.get("direct")
    return row.p50_us - direct.p50_us if direct is not None and direct.samples else 0.0


def over(rows: Mapping[str, Row], contender: str, against: str, figure: Figure) -> float | None:
    """One contender's figure divided by another's; None where either is missing."""
    mine, other = value(rows, contender, figure), value(rows, against, figure)
    return mine / other if mine > 0 and other > 0 else None
