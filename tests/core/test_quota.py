"""Limits hold at every moment, whatever comes in whichever order; and what is refused is told truly."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Busy, QuotaSpent
from proxy.core.quota import DAY, Amount, Held, Meter, Moment, Quota, Window, lasting

NOON = 20_000 * DAY + DAY / 2


def at(clock: float, wall: float | None = None) -> Moment:
    return Moment(clock=clock, wall=NOON + clock if wall is None else wall)


# -- what holds ------------------------------------------------------------------------------------------------------


def test_a_limit_that_is_not_stated_is_that_of_whoever_stands_below() -> None:
    below = Quota(requests_per_day=5, cost_per_day=7, stopped=True)
    assert Quota(cost_per_day=3, stopped=False).over(below) == Quota(requests_per_day=5, cost_per_day=3, stopped=False)
    assert Quota().over(below) == below


def test_only_what_is_counted_makes_a_key_metered_and_only_days_make_it_daily() -> None:
    assert not Quota(expires=1.0, stopped=True).metered and Quota(streams=1).metered
    assert not Quota(streams=1, tokens_per_minute=1, requests_per_minute=0).daily
    assert all(each.daily for each in (Quota(requests_per_day=0), Quota(tokens_per_day=0), Quota(cost_per_day=0)))


def test_a_key_is_closed_once_it_is_stopped_or_its_time_is_over() -> None:
    assert Quota(stopped=True).closed(0.0) and not Quota(stopped=False).closed(0.0)
    assert [Quota(expires=10.0).closed(now) for now in (9.9, 10.0, 11.0)] == [False, True, True]


# -- the minute ------------------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 9)), max_size=60)


def test_a_window_frees_what_was_used_second_by_second() -> None:
    window = Window()
    for second in (0.5, 10.5, 20.5):
        window.add(second, 5)
    assert [window.frees(30.0, amount) for amount in (0, 5, 6, 10, 99)] == [0, 31, 41, 41, 51]


@given(steps)
def test_a_window_holds_all_of_the_last_minute_and_nothing_older_than_a_second_more(
    steps: list[tuple[float, int]],
) -> None:
    window, past, now = Window(), [], 0.0
    for gap, amount in steps:
        now += gap
        window.add(now, amount)
        past.append((now, amount))
        used = window.used(now)
        assert sum(each for when, each in past if now - when <= 60) <= used
        assert used <= sum(each for when, each in past if now - when <= 61)
        for wanted in (0, 1, used):
            assert window.used(now) == used
            later = now + window.frees(now, wanted)
            assert window.frees(now, wanted) <= 61
            copy = Window()
            for when, each in past:
                copy.add(when, each)
            assert copy.used(later) <= max(0, used - wanted)


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["enter", "leave"])), max_size=80),
)
def test_no_sixty_seconds_ever_hold_more_requests_than_allowed(limit: int, acts: list[tuple[float, str]]) -> None:
    meter, now = Meter(Quota(requests_per_minute=limit)), 0.0
    begun: list[float] = []
    held: list[Held] = []
    for gap, act in acts:
        now += gap
        if act == "leave":
            if held:
                meter.leave(held.pop())
            continue
        try:
            held.append(meter.enter(at(now)))
        except Busy as refused:
            assert refused.retry_after is not None and 1 <= refused.retry_after <= 61
            assert sum(now - when <= 61 for when in begun) >= limit  # refused only where it is full
            continue
        begun.append(now)
        assert sum(now - when < 60 for when in begun) <= limit


def test_who_waits_as_long_as_he_is_told_is_served() -> None:
    meter = Meter(Quota(tokens_per_minute=100))
    first = meter.enter(at(0.0))
    meter.used(first, Amount(1, 100, 0), at(5.0))
    meter.leave(first)
    with pytest.raises(Busy) as refused:
        meter.enter(at(6.0))
    assert refused.value.retry and refused.value.retry_after is not None
    meter.enter(at(6.0 + refused.value.retry_after))


def test_tokens_that_running_requests_hold_are_not_given_twice() -> None:
    meter = Meter(Quota(tokens_per_minute=100))
    first, second = meter.enter(at(0.0)), meter.enter(at(0.0))
    meter.reserve(first, 80, 0, at(0.0))
    with pytest.raises(Busy) as refused:
        meter.reserve(second, 30, 0, at(0.0))
    assert refused.value.retry and refused.value.retry_after == 1
    meter.leave(first)
    meter.reserve(second, 30, 0, at(0.0))


def test_a_request_that_never_fits_is_not_told_to_come_again() -> None:
    meter = Meter(Quota(tokens_per_minute=100))
    held = meter.enter(at(0.0))
    with pytest.raises(Busy) as refused:
        meter.reserve(held, 101, 0, at(0.0))
    assert not refused.value.retry


# -- the day ---------------------------------------------------------------------------------------------------------

figures = st.tuples(st.integers(0, 50), st.integers(0, 50))


@given(
    st.integers(0, 200),
    st.lists(st.tuples(figures, st.integers(0, 60), st.booleans()), max_size=40),
)
def test_what_is_held_and_used_stays_within_the_day_if_no_call_takes_more_than_it_was_expected_to(
    limit: int, calls: list[tuple[tuple[int, int], int, bool]]
) -> None:
    meter, running, used = Meter(Quota(tokens_per_day=limit, cost_per_day=limit)), [], 0
    for (tokens, cost), share, ends in calls:
        try:
            held = meter.enter(at(0.0))
        except (Busy, QuotaSpent):
            held = None
        if held is not None:
            try:
                meter.reserve(held, tokens, cost, at(0.0))
            except (Busy, QuotaSpent):
                meter.leave(held)
            else:
                running.append((held, min(tokens, share), min(cost, share)))
        if ends and running:
            held, tokens, cost = running.pop(0)
            meter.used(held, Amount(1, tokens, cost), at(0.0))
            meter.leave(held)
            used += tokens
        assert meter.today.tokens == used <= limit and meter.today.cost <= limit
        assert meter.running == len(running)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30), st.integers(0, 30))
def test_a_sum_of_the_store_replaces_what_it_holds_and_nothing_else(
    rows: list[tuple[int, bool]], asked_at: int
) -> None:
    meter, today = Meter(Quota(tokens_per_day=10**6)), at(0.0).today
    meter.turn(today)
    mark, stored = meter.mark(), 0
    durable = 0
    for place, (tokens, lands) in enumerate(rows):
        if place == asked_at:
            mark, stored = meter.mark(), durable
        meter.used(None, Amount(1, tokens, 0), at(0.0))
        if lands:
            meter.durable(Amount(1, tokens, 0), today)
            durable += tokens
    elsewhere = 5
    if asked_at < len(rows):
        meter.told(Amount(0, stored + elsewhere, 0), mark, today)
        assert meter.today.tokens == sum(tokens for tokens, _ in rows) + elsewhere
        assert meter.asked


def test_a_new_day_begins_with_nothing_used_and_asks_again() -> None:
    meter = Meter(Quota(tokens_per_day=10))
    held = meter.enter(at(0.0))
    meter.told(Amount(0, 4, 0), meter.mark(), at(0.0).today)
    meter.used(held, Amount(1, 6, 0), at(0.0))
    with pytest.raises(Busy) as refused:
        meter.enter(at(1.0))
    assert not refused.value.retry and refused.value.retry_after == DAY / 2 - 1
    tomorrow = at(DAY / 2)
    meter.leave(held)
    held = meter.enter(tomorrow)
    assert not meter.asked and meter.today == Amount()
    meter.told(Amount(0, 4, 0), Amount(), at(0.0).today)  # a sum of yesterday comes late
    meter.durable(Amount(1, 6, 0), at(0.0).today)
    assert meter.today == Amount() and meter.mark() == Amount()


def test_a_spent_budget_is_told_apart_from_one_that_running_requests_hold() -> None:
    meter = Meter(Quota(cost_per_day=10))
    first, second = meter.enter(at(0.0)), meter.enter(at(0.0))
    meter.reserve(first, 1, 9, at(0.0))
    with pytest.raises(Busy) as busy:
        meter.reserve(second, 1, 2, at(0.0))
    assert busy.value.retry and busy.value.retry_after == 1
    meter.used(first, Amount(1, 1, 9), at(0.0))
    with pytest.raises(QuotaSpent) as spent:
        meter.reserve(second, 1, 2, at(0.0))
    assert not spent.value.retry
    meter.reserve(second, 1, 1, at(0.0))


def test_what_a_call_holds_goes_as_its_rows_are_closed_and_all_of_it_with_its_end() -> None:
    meter = Meter(Quota(tokens_per_day=100, requests_per_day=2))
    held = meter.enter(at(0.0))
    meter.reserve(held, 60, 0, at(0.0))
    meter.used(held, Amount(1, 20, 0), at(0.0))
    assert held.amount == Amount(0, 40, 0)
    meter.used(held, Amount(0, 50, 0), at(0.0))  # a second round took more than was expected
    assert held.amount == Amount() and meter.today.tokens == 70
    meter.leave(held)
    again = meter.enter(at(0.0))
    with pytest.raises(Busy):
        meter.enter(at(0.0))
    meter.leave(again)


def test_streams_are_counted_while_they_run() -> None:
    meter = Meter(Quota(streams=2))
    first, _ = meter.enter(at(0.0)), meter.enter(at(0.0))
    with pytest.raises(Busy) as refused:
        meter.enter(at(0.0))
    assert refused.value.retry_after == 1
    meter.leave(first)
    meter.enter(at(0.0))


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_the_nearer_of_two_limits_is_shown() -> None:
    meter = Meter(Quota(requests_per_minute=10, requests_per_day=3, tokens_per_minute=100, tokens_per_day=1000))
    held = meter.enter(at(0.0))
    meter.reserve(held, 40, 0, at(0.0))
    assert dict(meter.shown(at(0.0))) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "12h0m0s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "0s",
    }
    meter.used(held, Amount(1, 130, 0), at(0.5))
    assert dict(meter.shown(at(0.5)))["x-ratelimit-remaining-tokens"] == "0"
    assert dict(meter.shown(at(0.5)))["x-ratelimit-reset-tokens"] == "1m1s"
    assert Meter(Quota(cost_per_day=1)).shown(at(0.0)) == ()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.0001, "1ms"), (0.85, "850ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (86_341, "23h59m1s")],
)
def test_a_duration_is_written_as_openai_writes_them(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


@given(st.floats(0, 90_000))
def test_a_duration_is_never_shorter_than_it_is(seconds: float) -> None:
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", lasting(seconds))
    assert found is not None
    hours, minutes, whole, thousandths = (int(part or 0) for part in found.groups())
    assert hours * 3600 + minutes * 60 + whole + thousandths / 1000 >= seconds - 0.0005


def test_nothing_is_held_by_what_was_never_entered() -> None:
    assert Held().amount == Amount()
