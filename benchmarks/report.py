"""The results for a person (tables in the terminal) and for the repository (results.md).

Layout only: no figure is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case
from benchmarks.contenders import Field
from benchmarks.measure import Row
from benchmarks.ratios import Results, Verdict, over, verdicts

MB = 1 << 20


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run found."""

    machine: tuple[str, ...]
    command: str
    rounds: int
    field: Field
    cases: tuple[Case, ...]
    results: Results
    loaded_rss: Mapping[str, int]  # contender -> bytes after the last case


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A table before it has a form: the first `words` columns are text, the others figures. In a grouped one the rows
    of a case (its first two cells) belong together."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    grouped: bool = False


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f}" if microseconds < 1e5 else f"{microseconds / 1e3:.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _rows_of(outcome: Outcome, kinds: Sequence[str]) -> list[tuple[Case, Row, Mapping[str, Row]]]:
    found: list[tuple[Case, Row, Mapping[str, Row]]] = []
    for case in outcome.cases:
        rows = outcome.results.get(case.name, {})
        if case.kind in kinds:
            found += [(case, row, rows) for row in rows.values()]
    return found


def calls(outcome: Outcome) -> Grid:
    lines = [
        (
            case.title,
            str(case.in_flight),
            row.contender,
            _count(row.rps),
            _ms(row.p50_us),
            _ms(row.p99_us),
            _count(row.cpu_us),
            _times(over(rows, row.contender, "pass-through", "cpu_us")),
            _times(over(rows, row.contender, "nginx", "rps")),
            _times(over(rows, row.contender, "nginx", "added_p50")),
        )
        for case, row, rows in _rows_of(outcome, ("json",))
    ]
    head = (
        "case", "in flight", "contender", "calls/s", "p50 ms", "p99 ms", "CPU us/call",
        "CPU / pass", "calls/s / nginx", "added p50 / nginx",
    )  # fmt: skip
    return Grid(title="Calls", head=head, rows=tuple(lines), words=3, grouped=True)


def streams(outcome: Outcome) -> Grid:
    lines = [
        (
            case.title,
            str(case.in_flight),
            row.contender,
            _count(row.chunks_per_s),
            _ms(row.ttfb_p50_us),
            _ms(row.p50_us),
            _ms(row.delay_p50_us) if case.kind == "paced" else "",
            _ms(row.delay_p99_us) if case.kind == "paced" else "",
            f"{row.chunk_cpu_us:.2f}",
            _times(over(rows, row.contender, "pass-through", "chunk_cpu_us")),
            _times(over(rows, row.contender, "nginx", "chunk_cpu_us")),
        )
        for case, row, rows in _rows_of(outcome, ("burst", "paced"))
    ]
    head = (
        "case", "in flight", "contender", "chunks/s", "first byte ms", "stream ms", "delay p50 ms",
        "delay p99 ms", "CPU us/chunk", "CPU / pass", "CPU / nginx",
    )  # fmt: skip
    return Grid(title="Streams", head=head, rows=tuple(lines), words=3, grouped=True)


def processes(outcome: Outcome) -> Grid:
    lines = [
        (
            running.name,
            f"{running.startup_s:.2f}",
            f"{running.idle_rss / MB:.0f}",
            f"{outcome.loaded_rss.get(running.name, 0) / MB:.0f}",
        )
        for running in outcome.field.running
    ]
    head = ("contender", "start to first answer s", "RSS idle MB", "RSS after all MB")
    return Grid(title="Processes", head=head, rows=tuple(lines), words=1)


def targets(found: Sequence[Verdict]) -> Grid:
    lines = [
        (
            verdict.target.what,
            verdict.target.against,
            f"{verdict.ratio:.2f}",
            f"{'>=' if verdict.target.more_is_better else '<='} {verdict.target.gate:g}",
            f"{'>=' if verdict.target.more_is_better else '<='} {verdict.target.stretch:g}",
            verdict.word,
        )
        for verdict in found
    ]
    head = ("the gateway's", "over", "ratio", "gate", "stretch", "reached")
    return Grid(title="Targets", head=head, rows=tuple(lines), words=2)


def problems(outcome: Outcome) -> tuple[str, ...]:
    """Wrong answers, by case and contender: figures beside them are not to be believed."""
    return tuple(
        f"{row.contender}, {name}: {row.errors} failed; the first: {row.first_error or 'never finished'}"
        for name, rows in outcome.results.items()
        for row in rows.values()
        if row.errors
    )


def _grids(outcome: Outcome) -> tuple[Grid, ...]:
    all_of_them = (calls(outcome), streams(outcome), processes(outcome), targets(verdicts(outcome.results)))
    return tuple(grid for grid in all_of_them if grid.rows)


def _rich(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", header_style="bold")
    for place, name in enumerate(grid.head):
        table.add_column(name, justify="left" if place < grid.words else "right", no_wrap=place < grid.words)
    previous: tuple[str, ...] = ()
    for row in grid.rows:
        case = row[:2] if grid.grouped else ()
        if previous and case != previous:
            table.add_section()
        cells = ("", "", *row[2:]) if case and case == previous else row
        table.add_row(*cells, style="bold" if "weirgate" in row else "")
        previous = case
    return table


def show(outcome: Outcome, console: Console) -> None:
    """Print everything; what is missing or wrong comes last, where it is read."""
    for line in outcome.machine:
        console.print(line, style="dim", highlight=False)
    for grid in _grids(outcome):
        console.print(_rich(grid))
    for name, reason in outcome.field.missing:
        console.print(f"[yellow]not measured: {name}.[/] ", end="")
        console.print(reason, markup=False, highlight=False)
    for problem in problems(outcome):
        console.print("[red]wrong answers:[/] ", end="")
        console.print(problem, markup=False, highlight=False)


def _markdown(grid: Grid) -> list[str]:
    rule = ["---" if place < grid.words else "---:" for place in range(len(grid.head))]
    lines = [f"## {grid.title}", ""]
    for cells in (grid.head, rule, *grid.rows):
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def write(outcome: Outcome, path: Path) -> None:
    """results.md: the same figures, with the command that makes them and the machine they belong to."""
    lines = [
        "# Benchmark results",
        "",
        f"Made by `{outcome.command}`; medians of {outcome.rounds} interleaved round(s). README.md beside this file",
        "explains the columns. Ratios can be compared between machines, absolute figures cannot.",
        "",
        *(f"- {line}" for line in outcome.machine),
        "",
    ]
    for grid in _grids(outcome):
        lines += _markdown(grid)
    notes = [f"- not measured: {name}: {reason.splitlines()[0]}" for name, reason in outcome.field.missing]
    notes += [f"- wrong answers: {problem}" for problem in problems(outcome)]
    path.write_text("\n".join([*lines, *notes]).rstrip() + "\n")
