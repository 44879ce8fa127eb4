"""The breaker: what opens it, what does not, and how it finds out that its upstream is well again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.breaker import Breaker, Recent, Rules

RULES = Rules(consecutive=3, failures=4, share=0.5, within=10.0, pause=15.0)


class Counting(Breaker):
    """A breaker, and whoever counts how calls end."""

    def __init__(self) -> None:
        self.recent = Recent()
        super().__init__(RULES, self.recent)

    def succeeded(self, began: float, now: float) -> None:
        self.recent.add(now, False)
        super().succeeded(began, now)

    def failed(self, began: float, now: float) -> None:
        self.recent.add(now, True)
        super().failed(began, now)


def opened(at: float = 100.0) -> Breaker:
    breaker = Counting()
    for _ in range(RULES.consecutive):
        breaker.failed(at - 1, at)
    assert breaker.state == "open"
    return breaker


def test_failures_in_a_row_open_it_however_far_apart_and_a_success_between_them_does_not() -> None:
    breaker = Counting()
    for now in (0.0, 1000.0):
        breaker.failed(now, now)
    breaker.succeeded(1500.0, 1500.0)
    for now in (2000.0, 3000.0):
        breaker.failed(now, now)
    assert breaker.wait(3000.0) == 0
    breaker.failed(4000.0, 4000.0)
    assert breaker.state == "open"


def test_a_share_of_failures_opens_it_only_where_there_are_enough_of_them_at_once() -> None:
    def opens(outcomes: str, apart: float = 0.1) -> bool:
        breaker = Counting()
        for place, outcome in enumerate(outcomes):
            now = 100 + place * apart
            (breaker.failed if outcome == "x" else breaker.succeeded)(now, now)
            if breaker.state == "open":
                return True
        return False

    assert opens("x.x.x.x") and opens(".x.x.x.x")
    assert not opens("x.x.x.")  # too few
    assert not opens("x..x..x..x..x..x")  # too small a share
    assert not opens("x.x.x.x", apart=5.0)  # too far apart


def test_while_it_is_open_nothing_is_sent_and_the_time_to_wait_is_told() -> None:
    breaker = opened(100.0)
    assert [breaker.wait(now) for now in (100.0, 110.0, 114.5)] == [15.0, 5.0, 0.5]


def test_then_one_call_is_let_through_and_closes_it_or_opens_it_again() -> None:
    for well in (True, False):
        breaker = opened(100.0)
        assert breaker.wait(115.0) == 0 and breaker.state == "half_open"
        assert breaker.wait(115.0) > 0 and breaker.wait(116.0) > 0
        (breaker.succeeded if well else breaker.failed)(115.0, 117.0)
        assert (breaker.state, breaker.wait(117.0)) == (("closed", 0.0) if well else ("open", 15.0))


def test_the_head_of_an_answer_is_enough() -> None:
    breaker = opened(100.0)
    assert breaker.wait(115.0) == 0
    breaker.heard(115.0, 116.0)
    assert breaker.state == "closed"


def test_after_it_closed_it_begins_to_count_anew() -> None:
    breaker = Breaker(Rules(consecutive=3, failures=4, share=0.5, within=60.0, pause=1.0), recent := Recent())

    def fails(now: float) -> None:
        recent.add(now, True)
        breaker.failed(now, now)

    for _ in range(3):
        fails(100.0)
    assert breaker.state == "open" and breaker.wait(101.5) == 0
    breaker.heard(101.5, 102.5)
    for _ in range(2):
        fails(104.0)  # with the three from before there are five within the minute
    assert breaker.wait(104.0) == 0


def test_a_call_that_began_before_it_opened_tells_nothing() -> None:
    breaker = opened(100.0)
    breaker.heard(99.0, 101.0)
    breaker.succeeded(99.0, 101.0)
    assert breaker.state == "open" and breaker.wait(101.0) == 14.0
    breaker.failed(99.0, 110.0)
    assert breaker.wait(110.0) == 5.0  # nor does it make the pause longer


def test_a_call_that_nobody_waits_for_gives_its_place_to_another() -> None:
    breaker = opened(100.0)
    assert breaker.wait(115.0) == 0
    breaker.abandoned(99.0)  # an older one
    assert breaker.wait(115.0) > 0
    breaker.abandoned(115.0)
    assert breaker.wait(115.5) == 0


def test_a_call_that_is_never_heard_of_again_holds_the_place_for_a_pause() -> None:
    breaker = opened(100.0)
    assert breaker.wait(115.0) == 0
    assert breaker.wait(120.0) == 10.0
    assert breaker.wait(129.9) >= 0.09 and breaker.wait(130.0) == 0


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from(["call", "ok", "fail", "head", "leave"])), max_size=80))
def test_it_never_keeps_an_upstream_out_for_longer_than_a_pause(acts: list[tuple[float, str]]) -> None:
    breaker, now = Counting(), 0.0
    running: list[float] = []
    for gap, act in acts:
        now += gap
        if act == "call":
            wait = breaker.wait(now)
            assert 0 <= wait <= RULES.pause
            if wait == 0:
                running.append(now)
        elif running:
            began = running.pop(0)
            if act == "ok":
                breaker.succeeded(began, now)
            elif act == "fail":
                breaker.failed(began, now)
            elif act == "head":
                breaker.heard(began, now)
                running.append(began)
            else:
                breaker.abandoned(began)
    assert breaker.wait(now + 2 * RULES.pause) == 0


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=60), st.integers(1, 60))
def test_calls_are_counted_to_the_second(ends: list[tuple[float, bool]], seconds: int) -> None:
    recent, now, past = Recent(), 0.0, []
    for gap, failed in ends:
        now += gap
        recent.add(now, failed)
        past.append((int(now), failed))
    inside = [failed for when, failed in past if when > int(now) - seconds]
    assert recent.within(now, seconds) == (len(inside), sum(inside))
