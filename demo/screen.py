"""Everything that the demo prints. Knows how things look, not how they are done.

Works in a terminal of any width and in a log file; colour never carries a meaning alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from demo.gateway import Row
from demo.talk import Spoken, compacted

BAR = 28


class Screen:
    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """A line that lives while something is loading and then says how long it took."""
        began = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"  {doing} ...")
        with self.console.status(f"{doing} ..."):
            yield
        self.console.print(f"  [green]✓[/] {done} [dim]({time.monotonic() - began:.1f} s)[/]")

    def say(self, markup: str = "") -> None:
        self.console.print(markup, highlight=False)

    def heading(self, words: str) -> None:
        self.console.print()
        self.console.print(Rule(f"[bold]{words}[/]", align="left", style="dim"))

    @contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        with self.console.status(f"turn {number} ..."):
            yield

    def turn(self, spoken: Spoken, window: int, before: int) -> None:
        """One line: the turn, how full the window was, what was answered. `before` is the fill of the turn before."""
        if spoken.compaction != "none" and spoken.tokens < before:
            self.console.print(_compaction(spoken, before))
        line = Text(f" {spoken.number:>2} ")
        line.append(bar(spoken.tokens, window), style=_colour(spoken, window))
        line.append(f" {spoken.tokens:>5,} {_share(spoken.tokens, window):>4} ")
        if spoken.answered:
            line.append(" ".join(spoken.answer.split()), style="dim")
        else:
            line.append("✗ no answer: ", style="bold red")
            line.append(spoken.error, style="red")
        self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def notes(self, spoken: Sequence[Spoken], rows: Sequence[Row]) -> None:
        """Who wrote the notes of each compaction, and what became of the models that were asked to."""
        made = compacted(spoken)
        if not made:
            return
        self.heading("who wrote the notes")
        for one in made:
            self.console.print(f"  turn {one.number}: {_writer(one.notes)}", highlight=False)
        asked = Counter(row.error or "taken" for row in rows if row.purpose == "compaction")
        if asked:
            told = ", ".join(f"{count} {_outcome(what)}" for what, count in sorted(asked.items()))
            self.console.print(f"  the model was asked {asked.total()} times: {told}", highlight=False)

    def result(self, direct: Sequence[Spoken], through: Sequence[Spoken], turns: int) -> None:
        self.heading("result")
        self.console.print(
            f"direct: {answered(direct)}/{turns} turns answered; through Weirgate: {answered(through)}/{turns}",
            style="bold",
            highlight=False,
        )

    def recall(self, rows: Sequence[tuple[str, Spoken | None, Spoken | None]]) -> None:
        """What both conversations answered to the same late questions; nothing where they were not asked."""
        if not rows:
            return
        table = Table(
            "asked at the end", "direct", "through Weirgate", box=None, padding=(0, 2, 0, 0), title_justify="left"
        )
        for question, direct, through in rows:
            table.add_row(question, _answer(direct), _answer(through))
        self.console.print()
        self.console.print(table)

    def rows(self, rows: Sequence[Row]) -> None:
        """The usage rows that tell something: the first, those at a change of compaction, the last; then their sum."""
        self.heading(f"{len(rows)} usage rows, one for each call to the model (weirgate usage)")
        headings = (
            "call",
            "purpose",
            "status",
            "projected",
            "read",
            "cached",
            "written",
            "seconds",
            "compaction",
        )
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in headings:
            table.add_column(heading, justify="left" if heading in ("purpose", "status", "compaction") else "right")
        for number in telling(rows):
            table.add_row(*_cells(str(number + 1), rows[number]))
        total = [
            f"{sum(values):,}" for values in zip(*((row.input, row.cached, row.output) for row in rows), strict=True)
        ]
        seconds = f"{sum(row.duration or 0 for row in rows):.1f}"
        table.add_row("all", "", "", "", *(total or ["0"] * 3), seconds, "", style="bold")
        self.console.print(table)


def telling(rows: Sequence[Row]) -> list[int]:
    """Places of the rows worth showing: both ends, each row that stands on another compaction than the one before,
    and each that was no plain answered call."""
    ends = {0, 1, len(rows) - 2, len(rows) - 1}
    return [
        at
        for at, row in enumerate(rows)
        if at in ends or row.compaction_id != rows[at - 1].compaction_id or (row.purpose, row.status) != ("chat", "ok")
    ]


def _cells(number: str, row: Row) -> tuple[str, ...]:
    projected = "" if row.projected is None else f"{row.projected:,}"
    seconds = "" if row.duration is None else f"{row.duration:.1f}"
    numbers = (projected, f"{row.input:,}", f"{row.cached:,}", f"{row.output:,}", seconds)
    return (number, row.purpose, row.status, *numbers, row.compaction)


def answered(spoken: Sequence[Spoken]) -> int:
    return sum(one.answered for one in spoken)


def bar(tokens: int, window: int, cells: int = BAR) -> str:
    """How full a window is, in `cells` cells: at least one where anything is in it, all of them only when full."""
    full = min(cells, tokens * cells // window) if window else 0
    full = max(full, 1 if tokens else 0)
    return "█" * full + "░" * (cells - full)


def _share(tokens: int, window: int) -> str:
    return f"{100 * tokens // window}%" if window else ""


def _colour(spoken: Spoken, window: int) -> str:
    if not spoken.answered or spoken.tokens > window:
        return "red"
    return "yellow" if spoken.tokens > 0.8 * window else "green"


def _compaction(spoken: Spoken, before: int) -> Text:
    why = {"auto": "before it overflowed", "recovered": "after the model server refused it"}
    words = f"    ▼ turn {spoken.number}: compacted {why.get(spoken.compaction, spoken.compaction)}: "
    wrote = f"; notes by {_writer(spoken.notes)}" if spoken.notes else ""
    return Text(words + f"{before:,} tokens a turn ago, {spoken.tokens:,} now{wrote}", style="cyan")


def _outcome(error: str) -> str:
    refused = error.startswith("refused_")
    return "refused: " + error.removeprefix("refused_").replace("_", " ") if refused else error.replace("_", " ")


def _writer(notes: str) -> str:
    return "Weirgate itself" if notes == "builtin" else notes


def _answer(spoken: Spoken | None) -> str:
    if spoken is None or not spoken.answered:
        return "(no answer)"
    return " ".join(spoken.answer.split())
