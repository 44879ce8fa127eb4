"""Rows and columns: a table for a person at a terminal, aligned text for a pipe, CSV for a spreadsheet.

Belongs here: how cells are laid out and made safe to show. Never: what they mean. Names in a usage row were chosen by
clients, so they are never markup, never control codes, and never a formula.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

import msgspec

from proxy.server.exports import lines

_BAR: Final = 30
"""Characters of a bar."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is the heading; numbers stand on the `right`. A number, or what is `whole`, is never broken in two."""

    name: str
    right: bool = True
    whole: bool = False


def show(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    total: Sequence[str] | None = None,
    styles: Sequence[str] = (),
) -> None:
    """The table on stdout: by rich at a terminal, plain and whole (never folded) anywhere else. `styles` colour its
    rows, where there is colour; nothing may be told by colour alone."""
    lines = [tuple(map(plain, row)) for row in rows]
    last = None if total is None else tuple(map(plain, total))
    if sys.stdout.isatty():
        _rich(columns, lines, last, styles)
    else:
        _aligned(columns, lines, last, sys.stdout)


def _rich(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], total: Sequence[str] | None, styles: Sequence[str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_footer=total is not None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(
            Text(column.name),
            footer=Text(total[number] if total is not None else "", style="bold"),
            justify="right" if column.right else "left",
            no_wrap=column.right or column.whole,
            overflow="fold",
        )
    for place, row in enumerate(rows):
        table.add_row(*map(Text, row), style=styles[place] if styles else None)
    Console().print(table)


def _aligned(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], total: Sequence[str] | None, out: TextIO
) -> None:
    lines = [tuple(column.name for column in columns), *rows, *([total] if total is not None else [])]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        out.write("  ".join(cells).rstrip() + "\n")


def write_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """CSV (RFC 4180, but lines end in LF) on stdout; None is an empty cell."""
    sys.stdout.write(lines([names]).decode())
    sys.stdout.writelines(lines([row]).decode() for row in rows)


def plain(text: str) -> str:
    """`text` without anything that a terminal would obey."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def number(value: int) -> str:
    """With thousands separators."""
    return f"{value:,}"


def write(text: str) -> None:
    """A line on stdout."""
    sys.stdout.write(text + "\n")


def bar(size: int, whole: int, mark: int | None = None) -> str:
    """How much of `whole` is taken; what is over is said. A stroke stands at `mark`."""
    filled = round(_BAR * min(1.0, size / whole))
    drawn = "█" * filled + "░" * (_BAR - filled)
    if mark is not None and filled <= (at := min(_BAR - 1, round(_BAR * mark / whole))):
        drawn = drawn[:at] + "│" + drawn[at + 1 :]
    return drawn + (" over" if size > whole else "")


def stretch(before: int, size: int, whole: int) -> str:
    """The place that `size` takes in `whole` behind `before`: row by row they show how it fills up. What is there is
    never invisible."""
    first, last = (min(_BAR, round(_BAR * at / whole)) for at in (before, before + size))
    if not size:
        return ""
    return " " * min(first, _BAR - 1) + ("█" * (last - first) or "▏")
