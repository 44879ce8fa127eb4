"""Each told message is where the layout says, and each message of the history is told, cut or gone: none is lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.compaction import plan
from proxy.core.layout import Layout, noted
from proxy.core.notes import Compaction, Entry, Notes, Pin
from proxy.core.policy import Policy
from tests.core.histories import START, call, history, lines, loop, model, result, room, system, user


def test_a_whole_history_is_told_as_it_is() -> None:
    messages = (system("Be brief."), *loop(2), user("And now?"))
    layout = Layout(messages, chain.follow(START, messages), None)
    assert layout.told is messages
    assert (layout.front, len(layout.notes), len(layout.open)) == (1, 0, 0)
    assert [*layout.tail] == [*range(1, len(messages))]
    assert layout.origins == {place: place for place in range(1, len(messages))}
    assert (layout.clipped, layout.gone, layout.replaced) == ((), (), 0)


@given(st.integers(8, 40), st.integers(1, 30), st.integers(0, 2), st.booleans())
def test_every_message_is_told_cut_or_gone(turns: int, size: int, lead: int, ask: bool) -> None:
    front = tuple(system(f"Rule {number}.") for number in range(lead))
    messages = (*front, *loop(turns, size), *((user("And now?"),) if ask else ()))
    past = history(messages)
    made = plan(past, room(4000), Policy(), 1 << 30, 1.0)
    if made is None:
        return
    layout = Layout(messages, past.chain, made)
    assert len(layout.notes) == 1 and layout.told[layout.notes[0]].text.startswith("<conversation-notes")
    told = [layout.origins[place] for place in (*layout.open, *layout.tail)]
    assert sorted([*range(lead), *told, *layout.gone]) == [*range(len(messages))]
    assert len(layout.told) == lead + 1 + len(told)
    assert layout.replaced == len(layout.gone)
    for place, index in layout.origins.items():
        same = layout.told[place] is messages[index]
        assert same is (place not in layout.clipped)
        assert layout.told[place].role == messages[index].role


def test_an_open_request_stands_apart_from_the_tail_of_its_turn() -> None:
    request = user("Find the bug in the parser, please.")
    work = [item for number in range(30) for item in (model("", call(f"c{number}")), result(f"c{number}", lines(12)))]
    messages = (system("Be brief."), request, *work)
    past = history(messages)
    made = plan(past, room(4000), Policy(), 1 << 30, 1.0)
    assert made is not None and made.notes.part
    layout = Layout(messages, past.chain, made)
    assert [layout.told[place] for place in layout.open] == [request]
    assert layout.told[layout.tail[0]].calls


def test_a_system_message_that_stays_inside_the_covered_part_counts_as_told() -> None:
    messages = (system("Lead."), user("one"), model("a"), system("Inner."), user("two"), model("b"), user("three"))
    past = chain.follow(START, messages)
    made = Compaction(id="cmp_x", digest=past.after[5], messages=4, covers=4, notes=Notes(turns=2), standing=1)
    layout = Layout(messages, past, made)
    assert [item.text for item in layout.told[: layout.front]] == ["Lead.", "Inner."]
    assert layout.gone == (1, 2, 3, 4, 5) and layout.replaced == 4


@pytest.mark.parametrize("part", [False, True])
def test_notes_are_told_in_figures(part: bool) -> None:
    pins = (Pin(turn=1, text="a"), Pin(turn=2, text="b", cut=True), Pin(turn=3, text="c"))
    ledger = tuple(Entry(kind=kind, text=kind, turn=1) for kind in ("path", "url", "path"))
    notes = Notes(turns=3, part=part, pins=pins, dropped=4, ledger=ledger, unlisted=5, calls=(("grep", 2),))
    found = noted(msgspec.structs.replace(notes, narrative="Told.", rules=pins[:1], kept=("ref_1", "ref_2")))
    assert (found.whole, found.cut, found.dropped, found.rules, found.kept) == (2, 1, 4, 1, 2)
    assert found.ledger == (("path", 2), ("url", 1)) and found.unlisted == 5 and found.calls == (("grep", 2),)
    assert found.narrated and found.part is part
    assert found.covers == ("turns 1-3 and the first part of turn 4" if part else "turns 1-3")
