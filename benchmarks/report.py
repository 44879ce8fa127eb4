"""The results for a person (tables in the terminal) and for the repository (results.md).

Layout only: no figure is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import peers
from benchmarks.cases import Case
from benchmarks.comparing import interval
from benchmarks.contenders import OWN_NAMES
from benchmarks.findings import Findings, Outcome
from benchmarks.gates import LITELLM, Verdict, shown, verdicts
from benchmarks.instructions import Count
from benchmarks.measure import Row
from benchmarks.ratios import over

MB = 1 << 20


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
    return f"{microseconds / 1e3:.3f}" if microseconds < 1e5 else f"{microseconds / 1e3:,.0f}"


def _mb(size: float) -> str:
    return f"{size / MB:.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _rows_of(findings: Findings, kinds: Sequence[str]) -> list[tuple[Case, Row, Mapping[str, Row]]]:
    found: list[tuple[Case, Row, Mapping[str, Row]]] = []
    for case in findings.cases:
        rows = findings.results.get(case.name, {})
        if case.kind in kinds:
            found += [(case, row, rows) for row in rows.values()]
    return found


def _call_cells(row: Row, rows: Mapping[str, Row]) -> tuple[str, ...]:
    if not row.samples:
        return ("wrong answers", *[""] * 7)
    return (
        _count(row.rps),
        _ms(row.p50_us),
        _ms(row.p99_us),
        _count(row.cpu_us),
        _times(over(rows, row.contender, "pass-through", "cpu_us")),
        _times(over(rows, row.contender, "nginx", "rps")),
        _times(over(rows, row.contender, LITELLM, "rps")),
        _times(over(rows, row.contender, "nginx", "added_p50")),
    )


def calls(findings: Findings) -> Grid:
    lines = [
        (case.title, str(case.in_flight), row.contender, *_call_cells(row, rows))
        for case, row, rows in _rows_of(findings, ("json",))
    ]
    head = (
        "case", "in flight", "contender", "calls/s", "p50 ms", "p99 ms", "CPU us/call",
        "CPU / pass", "calls/s / nginx", "calls/s / LiteLLM", "added p50 / nginx",
    )  # fmt: skip
    grid = Grid(title="Calls", head=head, rows=tuple(lines), words=3, grouped=True)
    return grid if findings.field.named(LITELLM) is not None else _without("calls/s / LiteLLM", grid)


def _without(column: str, grid: Grid) -> Grid:
    place = grid.head.index(column)
    rows = tuple(row[:place] + row[place + 1 :] for row in grid.rows)
    return msgspec.structs.replace(grid, head=grid.head[:place] + grid.head[place + 1 :], rows=rows)


def _stream_cells(case: Case, row: Row, rows: Mapping[str, Row]) -> tuple[str, ...]:
    if not row.samples:
        return ("wrong answers", *[""] * 8)
    paced = case.kind == "paced"
    return (
        _count(row.chunks_per_s),
        _ms(row.ttfb_p50_us),
        _ms(row.p50_us),
        _ms(row.delay_p50_us) if paced else "",
        _ms(row.delay_p99_us) if paced else "",
        "" if case.beside else f"{row.chunk_cpu_us:.2f}",  # the 2 MB calls take most of it
        _times(over(rows, row.contender, "pass-through", "chunk_cpu_us")),
        _times(over(rows, row.contender, "nginx", "chunk_cpu_us")),
        _count(row.beside_rps) if case.beside else "",
    )


def streams(findings: Findings) -> Grid:
    lines = [
        (case.title, str(case.in_flight), row.contender, *_stream_cells(case, row, rows))
        for case, row, rows in _rows_of(findings, ("burst", "paced"))
    ]
    head = (
        "case", "in flight", "contender", "chunks/s", "first byte ms", "stream ms", "delay p50 ms",
        "delay p99 ms", "CPU us/chunk", "CPU / pass", "CPU / nginx", "2 MB calls/s",
    )  # fmt: skip
    return Grid(title="Streams", head=head, rows=tuple(lines), words=3, grouped=True)


def capacity(findings: Findings) -> Grid:
    yardstick = next((one.streams for one in findings.capacity if one.contender == "pass-through"), 0)
    lines = [
        (
            one.contender,
            f"{'> ' if one.bounded else ''}{one.streams}" if one.streams else "none",
            _ms(one.delay_p99_us) if one.streams else "",
            _times(one.streams / yardstick if yardstick else None),
        )
        for one in findings.capacity
    ]
    head = ("contender", "streams", "delay p99 ms", "streams / pass")
    return Grid(title="Paced streams that one core carries", head=head, rows=tuple(lines), words=1)


def memory(findings: Findings) -> Grid:
    lines = [
        (
            one.contender,
            _mb(one.idle),
            f"{one.stream / 1024:.1f}" if one.stream else "",
            ", ".join(_mb(size) for _, size in one.calls),
            f"{one.calls[-1][0]:,}" if one.calls else "0",
            f"{one.growth / MB:+.1f}" if len(one.calls) > 2 else "",
        )
        for one in findings.memory
        if one.idle
    ]
    head = ("contender", "idle MB", "KB per open stream", "MB after each block of calls", "calls", "last two blocks MB")
    return Grid(title="Memory of fresh processes", head=head, rows=tuple(lines), words=1)


def processes(findings: Findings) -> Grid:
    lines = [
        (
            running.name,
            f"{running.startup_s:.2f}",
            _mb(running.idle_rss),
            _mb(findings.loaded_rss.get(running.name, 0)),
        )
        for running in findings.field.running
    ]
    head = ("contender", "start to first answer s", "RSS idle MB", "RSS after all MB")
    return Grid(title="Processes", head=head, rows=tuple(lines), words=1)


def peer_table(findings: Findings) -> Grid:
    """Those that were asked for; one that does not run says why."""
    why = findings.field.why_missing
    lines = [
        (
            peer.name,
            f"{peer.package} {peer.version}",
            peer.licence,
            f"NOT MEASURED: {why(peer.name)}" if why(peer.name) else peer.run,
        )
        for peer in peers.PEERS
        if peer.name in findings.asked
    ]
    return Grid(title="Peers", head=("peer", "version", "licence", "run"), rows=tuple(lines), words=4)


def comparisons(findings: Findings) -> Grid:
    """Issues 5 and 6: what a call may cost at most, another one's CPU being 1."""
    lines = []
    for one in findings.comparisons:
        low, high = interval(one.ratios) if one.ratios else (0.0, 0.0)
        measured = (f"{one.median:.3f}", f"{low:.3f} to {high:.3f}") if one.ratios else ("", "")
        lines.append((one.pair.what, *measured, str(len(one.ratios)), f"<= {one.pair.gate}", one.word))
    title = "CPU of a call, over another's" + (f" (the commit: {findings.commit})" if findings.commit else "")
    head = ("what", "ratio", "its interval", "rounds", "gate", "verdict")
    return Grid(title=title, head=head, rows=tuple(lines), words=1)


def instructions(findings: Findings) -> Grid:
    def cells(count: Count | None) -> tuple[str, str]:
        return (f"{count.median / 1e3:,.0f}", f"{100 * count.spread:.1f}") if count else ("", "")

    lines = [
        (
            one.pair.what,
            *cells(one.mine),
            *cells(one.other),
            f"{one.ratio:.3f}" if one.ratio else "",
            f"<= {one.pair.gate}",
            one.word,
        )
        for one in findings.counted
    ]
    head = ("what", "thousand", "spread %", "of the other", "spread %", "ratio", "gate", "verdict")
    return Grid(title="Instructions of a call, over another's, one in flight", head=head, rows=tuple(lines), words=1)


def gate_table(found: Sequence[Verdict]) -> Grid:
    lines = []
    for verdict in found:
        gate, measured = verdict.gate, verdict.measured
        sign = ">=" if gate.more_is_better else "<="
        lines.append(
            (
                gate.what,
                "" if isinstance(measured, str) else shown(measured, gate.unit),
                f"{sign} {shown(gate.gate, gate.unit)}",
                f"{sign} {shown(gate.stretch, gate.unit)}",
                verdict.word,
            )
        )
    head = ("what", "measured", "gate", "stretch", "verdict")
    return Grid(title="Gates", head=head, rows=tuple(lines), words=1)


def wrong_answers(findings: Findings, *, of_peers: bool) -> tuple[str, ...]:
    """By case and contender: the figures beside them are not to be believed. Ours fail the run, a peer's do not."""
    return tuple(
        f"{row.contender}, {name}: {row.errors} failed; the first: {row.first_error or 'never finished'}"
        for name, rows in findings.results.items()
        for row in rows.values()
        if row.errors and (row.contender not in OWN_NAMES) is of_peers
    )


def problems(findings: Findings) -> tuple[str, ...]:
    """What makes this run's own figures wrong."""
    memories = (f"{one.contender}, memory: {one.problem}" for one in findings.memory if one.problem)
    voids = (f"weirgate, {case}: {reason}" for case, reason in findings.void.items())
    pairs = (f"{one.pair.what}: {one.problem}" for one in findings.comparisons if one.problem)
    return (*wrong_answers(findings, of_peers=False), *voids, *memories, *pairs)


def grids(findings: Findings) -> tuple[Grid, ...]:
    """Every table that has something in it; the gates last, where they are read."""
    tables = (
        peer_table(findings),
        calls(findings),
        streams(findings),
        capacity(findings),
        memory(findings),
        processes(findings),
        comparisons(findings),
        instructions(findings),
        gate_table(verdicts(findings)),
    )
    return tuple(grid for grid in tables if grid.rows)


def _rich(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", header_style="bold")
    for place, name in enumerate(grid.head):
        words = place < grid.words or name == "verdict"
        table.add_column(name, justify="left" if words else "right", no_wrap=name == "contender")
    previous: tuple[str, ...] = ()
    for row in grid.rows:
        case = row[:2] if grid.grouped else ()
        if previous and case != previous:
            table.add_section()
        cells = ("", "", *row[2:]) if case and case == previous else row
        table.add_row(*map(Text, cells), style="bold" if "weirgate" in row else "")
        previous = case
    return table


def show(outcome: Outcome, console: Console) -> None:
    """Print everything; what is missing or wrong stands before the gates, which come last."""
    findings = outcome.findings
    for line in outcome.machine:
        console.print(line, style="dim", highlight=False)
    *tables, gates = grids(findings)
    for grid in tables:
        console.print(_rich(grid))
    for name, reason in findings.field.missing:
        console.print(f"[yellow]NOT MEASURED: {name}:[/] ", end="")
        console.print(reason, markup=False, highlight=False)
    for problem in (*problems(findings), *wrong_answers(findings, of_peers=True)):
        console.print("[red]wrong:[/] ", end="")
        console.print(problem, markup=False, highlight=False)
    console.print(_rich(gates))


def markdown(grid: Grid) -> list[str]:
    rule = ["---" if place < grid.words or name == "verdict" else "---:" for place, name in enumerate(grid.head)]
    lines = [f"## {grid.title}", ""]
    for cells in (grid.head, rule, *grid.rows):
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return [*lines, ""]


def write(outcome: Outcome, path: Path) -> None:
    """results.md: the same figures, with the command that makes them and the machine they belong to."""
    findings = outcome.findings
    lines = [
        "# Benchmark results",
        "",
        f"Made by `{outcome.command}`; medians of {outcome.rounds} interleaved round(s). README.md beside this file",
        "explains the columns, stages.md shows where a call's CPU goes. Ratios can be compared between machines,",
        "absolute figures cannot.",
        "",
        *(f"- {line}" for line in outcome.machine),
        "",
    ]
    *tables, gates = grids(findings)
    for grid in tables:
        lines += markdown(grid)
    notes = [f"- not measured: {name}: {findings.field.why_missing(name)}" for name, _ in findings.field.missing]
    notes += [f"- wrong: {problem}" for problem in (*problems(findings), *wrong_answers(findings, of_peers=True))]
    path.write_text("\n".join([*lines, *notes, *([""] if notes else []), *markdown(gates)]).rstrip() + "\n")
