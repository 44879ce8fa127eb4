"""The memory of notes as they are told."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.compaction import named_by_content, notes_message
from proxy.core.notes import Compaction, Notes, Pin
from proxy.upstream.noted import Noted


def made(number: int) -> Compaction:
    pins = (Pin(turn=1, text=f"request {number} " * (number + 1)),)
    return named_by_content(Compaction(id="", digest=b"d", messages=1, covers=1, notes=Notes(turns=1, pins=pins)))


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1_500, 6_000))
def test_what_is_remembered_is_what_would_be_written_and_the_budget_holds(numbers: list[int], budget: int) -> None:
    memory = Noted(budget)
    for number in numbers:
        told, plain = memory.write(made(number)), notes_message(made(number))
        assert (told.digest, told.tokens, told.text) == (plain.digest, plain.tokens, plain.text)
        assert json.loads(told.wire or b"") == {"role": "user", "content": plain.text}
        assert memory.held <= max(budget, 2 * len(told.wire or b""))


def test_notes_are_written_once_whoever_asks() -> None:
    memory = Noted()
    first = memory.write(made(1))
    with ThreadPoolExecutor(4) as pool:
        assert all(each is first for each in pool.map(memory.write, [made(1)] * 40))
    assert memory.held == 2 * len(first.wire or b"")
