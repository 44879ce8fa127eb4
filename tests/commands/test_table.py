"""Tables and bars: the same words at a terminal and in a pipe, and bars that never lie."""

from __future__ import annotations

import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.commands.accounting import percent
from proxy.commands.table import Column, bar, show, stretch

COLUMNS = (
    Column(name="layer", right=False, whole=True),
    Column(name="tokens"),
    Column(name="", right=False, whole=True),
)
ROWS = (("base", "10", "█"), ("notes\x1b[31m", "200", " ██"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    show(COLUMNS, ROWS, ("prompt", "210", "███"), ("cyan", ""))
    return out.getvalue()


def test_a_terminal_and_a_pipe_are_shown_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    at_terminal, in_pipe = shown(monkeypatch, Terminal()), shown(monkeypatch, io.StringIO())
    assert "\x1b[36m" in at_terminal and "\x1b" not in in_pipe
    plain = re.sub(r"\x1b\[[0-9;]*m", "", at_terminal)
    assert plain.replace("─", "").split() == in_pipe.split()
    assert "notes\ufffd[31m" in in_pipe


def test_without_colour_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    told = shown(monkeypatch, Terminal())
    assert "[36m" not in told and "base" in told and "prompt" in told


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12), st.integers(1, 20_000))
def test_stacked_bars_fill_what_one_bar_fills_and_hide_nothing(sizes: list[int], whole: int) -> None:
    before, filled = 0, 0
    for size in sizes:
        drawn = stretch(before, size, whole)
        assert len(drawn) <= 30 and bool(drawn.strip()) is bool(size)
        filled += drawn.count("█")
        assert drawn.find("█") in (-1, min(30, round(30 * before / whole)))
        before += size
    assert filled == bar(before, whole).count("█")


def test_the_stroke_stands_at_its_place_and_never_hides_what_is_filled() -> None:
    assert bar(25, 100, 50) == "█" * 8 + "░" * 7 + "│" + "░" * 14
    assert bar(25, 100, 100)[-1] == "│"
    assert "│" not in bar(80, 100, 50) and bar(120, 100, 85).endswith("█ over")
    assert bar(25, 100) == "█" * 8 + "░" * 22


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0.0%"), (1, "<0.1%"), (10, "0.1%"), (5_000, "50.0%"), (12_000, "120.0%")]
)
def test_a_share_that_is_there_is_never_told_as_nothing(size: int, said: str) -> None:
    assert percent(size, 10_000) == said
