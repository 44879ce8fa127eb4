"""The words that boards are written in: a panel with its queries, a row of panels, a board.

Belongs here: what both Grafana's JSON and a picture are made of, and how queries are put together. Never: Grafana.
Queries say `$rate` for the window of a rate, `$jobs` for the matcher of the scrape job and `$models` and `$upstreams`
for what the reader has chosen: the JSON has Grafana's variables there, a test and a picture what they need.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

QUANTILES: Final = (0.5, 0.95, 0.99)

Kind = Literal["lines", "stack", "number", "heat", "bars"]
"""lines over time; the same on top of each other; one number; buckets over time; one bar for each series."""

Unit = Literal["s", "reqps", "short", "percentunit", "currencyUSD", "dateTimeFromNow"]


class Query(msgspec.Struct, frozen=True):
    """PromQL, and how each of its series is called: `{{label}}` is a label's value."""

    expr: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """`about` says what it shows and what to do when it looks bad; `width` is of 24. `good` and `bad` are bounds of a
    number's colour: the second is the alarming one, above or below the first. `floor`: nothing in it is below zero."""

    title: str
    about: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    unit: Unit = "short"
    width: int = 8
    good: float | None = None
    bad: float | None = None
    floor: bool = True


class Row(msgspec.Struct, frozen=True):
    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """`uid` is the address that links name: it never changes."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    by_model: bool = True
    by_upstream: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def of(metric: str, *matchers: str) -> str:
    """The series of a metric in the jobs that were chosen."""
    return f"{metric}{{{','.join(('$jobs', *matchers))}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """What a counter grows by in a second, added up."""
    return f"sum{_by(by)}(rate({of(metric, *matchers)}[$rate]))"


def growth(metric: str, *matchers: str, by: str = "") -> str:
    """What a counter has grown by in the time that is looked at, added up."""
    return f"sum{_by(by)}(increase({of(metric, *matchers)}[$range]))"


def share(part: str, whole: str) -> str:
    """A share that is 0, not nothing, while nothing happens."""
    return f"({part}) / ({whole} > 0) or 0 * ({whole})"


def quantile(q: float, metric: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram."""
    names = f"le,{by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', *matchers, by=names)})"


def quantiles(metric: str, *matchers: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, metric, *matchers), f"p{round(100 * q)}") for q in QUANTILES)


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def filled(query: Query, *, rate: str, range: str) -> str:
    """The query for a Prometheus of our own, where nothing is left out: with windows such as "30s"."""
    expr = query.expr.replace("$rate", rate).replace("$range", range)
    for name, label in (("$jobs", "job"), ("$models", "model"), ("$upstreams", "upstream")):
        expr = expr.replace(name, f'{label}=~".+"')
    return expr
