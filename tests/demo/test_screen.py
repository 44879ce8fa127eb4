"""What the demo prints is readable without colour, at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from demo.gateway import Row
from demo.screen import BAR, Screen, bar, telling
from demo.talk import Spoken


@pytest.mark.parametrize(
    ("tokens", "full"), [(0, 0), (1, 1), (1024, BAR // 2), (2047, BAR - 1), (2048, BAR), (2100, BAR)]
)
def test_a_bar_is_full_exactly_when_the_window_is(tokens: int, full: int) -> None:
    assert bar(tokens, 2048) == "█" * full + "░" * (BAR - full)


def _spoken(**changes: object) -> Spoken:
    values = dict(
        number=7, answered=True, tokens=512, window=2048, compaction="none",
        prompt=512, completion=9, seconds=0.1, answer="One\nlong answer " * 20, error="",
    )  # fmt: skip
    return Spoken(**{**values, **changes})  # type: ignore[arg-type]


def _printed(spoken: Spoken, before: int = 0, width: int = 80) -> list[str]:
    output = io.StringIO()
    Screen(Console(file=output, width=width)).turn(spoken, 2048, before)
    return output.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 80, 160])
def test_a_turn_is_one_line_that_fits(width: int) -> None:
    (line,) = _printed(_spoken(), width=width)
    assert len(line.rstrip()) <= width
    assert "512" in line and "25%" in line


def test_a_refused_turn_says_so_in_words() -> None:
    (line,) = _printed(_spoken(answered=False, tokens=2090, error="400: too long", answer=""))
    assert "no answer: 400: too long" in line and "102%" in line


def test_a_compaction_has_its_own_line_with_both_sizes() -> None:
    first, _ = _printed(_spoken(compaction="auto"), before=1711)
    assert "compacted before it overflowed" in first and "1,711" in first and "512" in first
    (resting,) = _printed(_spoken(compaction="auto"), before=500)
    assert "compacted" not in resting


def test_the_result_is_the_sentence_that_the_demo_promises() -> None:
    output = io.StringIO()
    Screen(Console(file=output, width=80)).result([_spoken(), _spoken(answered=False)], [_spoken()] * 2, 2)
    assert "direct: 1/2 turns answered; through Weirgate: 2/2\n" in output.getvalue()


def _row(at: int, compaction: str | None = None, purpose: str = "chat", status: str = "ok") -> Row:
    return Row(
        opened_at=at, purpose=purpose, status=status, input=1000 + at, output=20, cached=900, projected=1001,
        compaction="auto" if compaction else "none", compaction_id=compaction, duration=0.5,
    )  # fmt: skip


def test_the_rows_shown_are_the_ends_the_compactions_and_whatever_was_not_plain() -> None:
    rows = [_row(at, "a" if 10 <= at < 15 else "b" if at >= 15 else None) for at in range(20)]
    rows[5] = _row(5, status="failed")
    rows[6] = _row(6, purpose="recovery")
    assert telling(rows) == [0, 1, 5, 6, 10, 15, 18, 19]


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_the_rows_end_with_their_sum(count: int) -> None:
    output = io.StringIO()
    Screen(Console(file=output, width=110)).rows([_row(0)] * count)
    said = output.getvalue()
    assert f"{count} usage rows" in said
    assert f"{1000 * count:,}" in said.splitlines()[-1] and f"{20 * count:,}" in said.splitlines()[-1]
