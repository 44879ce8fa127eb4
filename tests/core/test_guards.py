"""Compaction that does not help stops, says why, and starts again when something changed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import guards
from proxy.core.guards import (
    Allowed,
    Compacted,
    Event,
    Faced,
    Failed,
    Floor,
    Guard,
    NoNotes,
    Pause,
    Used,
    Wrote,
    allowed,
    floor,
    moved,
    stopped,
)

START = moved(Guard(), Faced(model="m", window=8_000))
ABOVE, BELOW = Used(tokens=7_000, trigger=6_800, compaction="cmp_a"), Used(tokens=3_000, trigger=6_800)


def after(*events: Event, guard: Guard = START) -> Guard:
    for event in events:
        guard = moved(guard, event)
    return guard


def may(guard: Guard, *, projected: int = 7_000, manual: bool = False, limit: int = 3) -> Allowed:
    return allowed(guard, failure_limit=limit, manual=manual, projected=projected, most=7_800)


@pytest.mark.parametrize("limit", range(1, 11))
def test_so_many_failures_in_a_row_and_no_model_is_asked_any_more(limit: int) -> None:
    almost = after(*[Failed()] * (limit - 1))
    assert may(almost, limit=limit) == Allowed(compaction=True, model=True)
    assert stopped(almost, limit) == ""
    struck = moved(almost, Failed())
    assert may(struck, limit=limit) == Allowed(compaction=True, model=False), "the built-in writes on"
    assert stopped(struck, limit) == "model_failures"
    assert may(struck, limit=limit, manual=True) == Allowed(compaction=True, model=True)
    assert may(moved(struck, Wrote()), limit=limit).model


def test_a_success_between_begins_the_row_anew() -> None:
    assert after(Failed(), Failed(), Wrote(), Failed(), Failed()).failures == 2


def test_without_any_notes_automatic_compaction_pauses() -> None:
    paused = after(NoNotes())
    assert paused.pause is Pause.NO_NOTES
    assert may(paused) == Allowed(compaction=False, model=False)
    assert stopped(paused, 3) == "no_notes"
    assert after(NoNotes(manual=True)) == START, "a manual one that fails pauses nothing"


def test_a_compaction_that_did_not_help_pauses_too() -> None:
    paused = after(Compacted(id="cmp_a"), ABOVE)
    assert paused.pause is Pause.STILL_ABOVE
    assert may(paused) == Allowed(compaction=False, model=False)
    assert stopped(paused, 3) == "still_above"


def test_only_the_next_usage_of_that_compaction_is_judged() -> None:
    made = after(Compacted(id="cmp_a"))
    other = Used(tokens=7_000, trigger=6_800, compaction="cmp_b")
    assert after(other, guard=made) == made
    assert after(ABOVE) == START, "grown above the trigger without a compaction: that is what compactions are for"
    helped = after(Used(tokens=3_000, trigger=6_800, compaction="cmp_a"), guard=made)
    assert helped.awaiting == ""
    assert after(ABOVE, guard=helped).pause is None, "later growth is no fault of the compaction"


def test_at_the_edge_of_the_window_built_in_notes_are_tried_even_while_paused() -> None:
    paused = after(NoNotes())
    assert may(paused, projected=7_799) == Allowed(compaction=False, model=False)
    assert may(paused, projected=7_800) == Allowed(compaction=True, model=False)


@pytest.mark.parametrize(
    "ends",
    [
        Compacted(id="cmp_b", manual=True),
        Faced(model="other", window=8_000),
        Faced(model="m", window=16_000),
        BELOW,
    ],
)
def test_a_pause_ends_when_something_changed(ends: Event) -> None:
    for paused in (after(NoNotes()), after(Compacted(id="cmp_a"), ABOVE)):
        assert moved(paused, ends).pause is None
        assert may(moved(paused, ends)).compaction


@pytest.mark.parametrize("goes_on", [Faced(model="m", window=8_000), Failed(), Wrote(), Compacted(id="cmp_b"), ABOVE])
def test_a_pause_does_not_end_by_itself(goes_on: Event) -> None:
    assert after(NoNotes(), goes_on).pause is Pause.NO_NOTES


def test_another_model_or_window_forgets_the_failures() -> None:
    struck = after(Failed(), Failed(), Failed())
    assert moved(struck, Faced(model="m", window=8_000)) == struck
    assert moved(struck, Faced(model="n", window=8_000)) == Guard(model="n", window=8_000)
    assert moved(struck, Faced(model="m", window=None)) == Guard(model="m")
    assert moved(after(Failed(), guard=Guard()), Faced(model="m", window=1)).failures == 1, (
        "learned before it was named"
    )


EVENTS = st.one_of(
    st.builds(Faced, model=st.sampled_from("mn"), window=st.sampled_from([None, 8_000])),
    st.just(Wrote()),
    st.just(Failed()),
    st.builds(Compacted, id=st.sampled_from(["a", "b"]), manual=st.booleans()),
    st.builds(NoNotes, manual=st.booleans()),
    st.builds(Used, tokens=st.integers(0, 9_000), trigger=st.just(6_800), compaction=st.sampled_from(["", "a", "b"])),
)


@given(st.lists(EVENTS, max_size=30), st.integers(1, 10))
def test_whatever_happens_a_manual_compaction_and_a_small_usage_set_it_right(events: list[Event], limit: int) -> None:
    guard = after(*events)
    assert msgspec.json.decode(msgspec.json.encode(guard), type=Guard) == guard, "as it lies in an anchor"
    assert may(guard, manual=True, limit=limit) == Allowed(compaction=True, model=True)
    assert may(guard, projected=7_800, limit=limit).compaction
    assert (stopped(guard, limit) == "") == (may(guard, limit=limit) == Allowed(compaction=True, model=True))
    assert after(BELOW, Wrote(), guard=guard).pause is None
    assert may(after(BELOW, Wrote(), guard=guard), limit=limit) == Allowed(compaction=True, model=True)


# -- the floor -------------------------------------------------------------------------------------------------------


def test_what_fits_has_no_floor() -> None:
    assert floor(system=1_000, layers=0, tools=2_000, newest=4_000, most=7_000) is None
    assert floor(system=1_000, layers=1, tools=2_000, newest=4_000, most=7_000) is not None


@pytest.mark.parametrize(
    ("system", "layers", "tools", "newest", "part", "text"),
    [
        (9_000, 10, 10, 10, "system", "the system messages alone take 9,000 of 7,000 tokens"),
        (10, 7_500, 10, 10, "layers", "the operator's prompts and skills alone take 7,500 of 7,000 tokens"),
        (10, 10, 7_500, 10, "tools", "the tool definitions alone take 7,500 of 7,000 tokens"),
        (10, 10, 10, 7_001, "newest", "the newest messages alone take 7,001 of 7,000 tokens"),
        (
            2_000,
            1_000,
            3_500,
            600,
            "tools",
            "what must stay takes 7,100 of 7,000 tokens; the tool definitions take 3,500 of 7,000 tokens",
        ),
    ],
)
def test_the_part_that_is_too_large_is_named(
    system: int, layers: int, tools: int, newest: int, part: str, text: str
) -> None:
    found = floor(system=system, layers=layers, tools=tools, newest=newest, most=7_000)
    assert isinstance(found, Floor)
    assert found.part == part
    assert found.alone is (found.tokens > 7_000)
    assert found.text == text
    assert guards.floor(system=system, layers=layers, tools=tools, newest=newest, most=7_000) == found
