"""When the boundaries of memory move: in steps of turns, or when it pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.agent import MemoryLimits
from proxy.core.pacing import SLACK, Pace, Weight, Window, loosest, pace_of, paced, stepped
from proxy.core.policy import Tariff

LIMITS = MemoryLimits()
CACHED = Pace(step=None, read=0.1, write=1.25)
LARGE = Weight(whole=20_000, recent=1_500, older=900, asked=50, calls=10)
"""A turn of an agent: most of it is results."""
SMALL = Weight(whole=100, recent=100, older=100, asked=40, calls=1)
"""A turn of a chat: there is nothing to cut."""


def test_with_every_turn_they_move_to_the_very_limits() -> None:
    assert stepped(0, LIMITS, 1) == Window()
    assert stepped(2, LIMITS, 1) == Window(first=0, results=0, trimmed=2)
    assert stepped(20, LIMITS, 1) == Window(first=0, results=17, trimmed=20)
    assert stepped(25, LIMITS, 1) == Window(first=5, results=22, trimmed=25)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 8, 10, 20, 33])
def test_in_steps_they_move_together_and_never_leave_more_than_a_step_beyond(step: int) -> None:
    seen = set()
    for closed in range(200):
        window = stepped(closed, LIMITS, step)
        seen.add(window)
        assert closed - window.first < LIMITS.turns + step
        assert closed - window.results < LIMITS.result_turns + step
        assert closed - window.trimmed < step
        assert window.first <= window.results <= window.trimmed <= closed
    assert len(seen) <= 200 // step + 2


@pytest.mark.parametrize("step", [1, 3, 5, 7, 20])
def test_once_notes_stand_for_what_slid_out_the_boundaries_lie_where_they_lay(step: int) -> None:
    for closed in range(LIMITS.turns, 200):
        before = stepped(closed, LIMITS, step)
        after = stepped(closed - before.first, LIMITS, step)
        assert after.first == 0
        assert after.results + before.first == before.results
        assert after.trimmed + before.first == before.trimmed


def test_the_loosest_boundaries_are_behind_those_of_any_compaction() -> None:
    for step in (1, 4, 20):
        for closed in range(60):
            most = loosest(closed, LIMITS, Pace(step=step))
            for covered in range(closed + 1):
                window = stepped(closed - covered, LIMITS, step)
                if window.trimmed:
                    assert most.trimmed <= window.trimmed + covered
                    assert most.results <= max(window.results + covered, covered)
    assert loosest(60, LIMITS, CACHED) == Window()


# -- the tariff -------------------------------------------------------------------------------------------------------


def test_a_stated_step_holds_whatever_a_token_costs() -> None:
    assert pace_of(MemoryLimits(step=4), Tariff(input=10, output=1, cached=1)) == Pace(step=4)


@pytest.mark.parametrize("tariff", [None, Tariff(input=10, output=1), Tariff(input=10, output=1, cached=10)])
def test_without_a_price_for_what_is_cached_they_move_with_every_turn(tariff: Tariff | None) -> None:
    assert pace_of(LIMITS, tariff) == Pace(step=1)


def test_with_one_they_move_when_it_pays() -> None:
    assert pace_of(LIMITS, Tariff(input=1000, output=1, cached=100, cache_write=1250)) == CACHED
    assert pace_of(LIMITS, Tariff(input=1000, output=1, cached=250)) == Pace(step=None, read=0.25, write=1.0)


# -- when it pays -----------------------------------------------------------------------------------------------------


def test_a_turn_full_of_results_is_cut_at_once() -> None:
    assert paced([LARGE], LIMITS, CACHED) == Window(first=0, results=0, trimmed=1)


def test_where_there_is_nothing_to_cut_nothing_moves_until_it_must() -> None:
    for closed in range(SLACK):
        assert paced([SMALL] * closed, LIMITS, CACHED) == Window()
    assert paced([SMALL] * SLACK, LIMITS, CACHED).trimmed == SLACK
    assert paced([SMALL] * (SLACK + LIMITS.turns), LIMITS, CACHED).first == SLACK


def test_a_provider_that_reads_its_cache_for_nothing_is_never_worth_moving_for() -> None:
    assert paced([LARGE] * (SLACK - 1), LIMITS, Pace(step=None, read=0.0, write=1.0)) == Window()


WEIGHTS = st.builds(
    lambda whole, recent, older, asked, calls: Weight(
        whole=whole,
        recent=int(whole * recent),
        older=int(whole * recent * older),
        asked=int(whole * recent * older * asked),
        calls=calls,
    ),
    st.integers(1, 50_000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 40),
)


@given(st.lists(WEIGHTS, max_size=80), st.sampled_from([CACHED, Pace(step=None, read=0.25, write=1.0)]))
def test_the_boundaries_only_move_on_and_stay_within_the_slack(weights: list[Weight], pace: Pace) -> None:
    before = Window()
    for closed in range(len(weights) + 1):
        now = paced(weights[:closed], LIMITS, pace)
        assert before.first <= now.first
        assert before.results <= now.results
        assert before.trimmed <= now.trimmed <= closed
        assert closed - now.first < LIMITS.turns + SLACK
        assert closed - now.trimmed < SLACK
        assert now.first <= max(0, closed - LIMITS.turns)
        assert now.results <= max(0, closed - LIMITS.result_turns)
        before = now


def _spent(weights: list[Weight], pace: Pace) -> tuple[float, float]:
    """What all calls cost, with memory and without, where the cache never expires: told again from the windows."""
    told = whole = 0.0
    last = Window()
    for closed in range(len(weights) + 1):
        window = paced(weights[:closed], LIMITS, pace)
        sizes = []
        for number, weight in enumerate(weights[:closed]):
            if number < window.first:
                continue
            kind = "whole" if number >= window.trimmed else "recent" if number >= window.results else "older"
            sizes.append(getattr(weight, kind))
        changed = window != last
        calls = weights[closed].calls if closed < len(weights) else 1
        notes = 150 + sum(weight.asked for weight in weights[: window.first]) if window.first else 0
        total = notes + sum(sizes)
        start = last.results if window.results > last.results else last.trimmed
        start = 0 if window.first > last.first else start - window.first
        fresh = sum(sizes[max(0, start) :]) + (notes if window.first > last.first else 0) if changed else 0
        told += pace.read * (total - fresh) + pace.write * fresh + max(0, calls - 1) * pace.read * total
        whole += max(1, calls) * pace.read * sum(weight.whole for weight in weights[:closed])
        last = window
    return told, whole


@given(
    st.lists(st.sampled_from([LARGE, SMALL, Weight(whole=900, recent=700, older=500, asked=50, calls=6)]), max_size=35)
)
def test_what_moves_before_it_must_never_costs_more_than_half_a_turn_saves(weights: list[Weight]) -> None:
    told, whole = _spent(weights, CACHED)
    calls = [weight.calls for weight in weights] or [0]
    most = 0.5 * max(calls) * CACHED.read * sum(weight.whole for weight in weights)
    assert told <= whole + most + 1e-6
