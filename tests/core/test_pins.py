from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.measure import estimate
from proxy.core.pins import Request, pinned

requests = st.lists(st.integers(1, 4_000), max_size=30).map(
    lambda sizes: tuple(
        Request(turn=turn, text=f"request {turn} " + "word " * (size // 5)) for turn, size in enumerate(sizes, 1)
    )
)


@given(requests, st.integers(0, 3_000))
def test_every_request_is_whole_or_cut_with_a_mark_or_counted(asked: tuple[Request, ...], budget: int) -> None:
    pins, dropped, spent = pinned(asked, budget)
    kept = {pin.turn: pin for pin in pins}
    assert [pin.turn for pin in pins] == sorted(kept)
    assert dropped == len(asked) - len(kept)
    for request in asked:
        pin = kept.get(request.turn)
        if pin is None:
            continue
        if pin.cut:
            assert pin.text.startswith(request.text[:100])
            assert "characters were left out here by the gateway" in pin.text
        else:
            assert pin.text == request.text
    assert spent <= budget
    assert sum(estimate(pin.text) + 5 for pin in pins) <= budget + len(pins)


def test_all_stay_whole_while_they_fit() -> None:
    asked = tuple(Request(turn=turn, text=f"do {turn} " * 30) for turn in range(1, 9))
    pins, dropped, _ = pinned(asked, 10_000)
    assert [pin.text for pin in pins] == [request.text for request in asked]
    assert (dropped, any(pin.cut for pin in pins)) == (0, False)


def test_the_first_and_the_newest_are_kept_before_all_others() -> None:
    asked = tuple(Request(turn=turn, text=f"request {turn} " * 20) for turn in range(1, 20))
    pins, dropped, _ = pinned(asked, 2 * estimate(asked[0].text) + 60)
    assert {1, 19} <= {pin.turn for pin in pins}
    assert dropped == 19 - len(pins)


def test_a_cut_request_grows_into_what_is_left() -> None:
    asked = (Request(turn=1, text="word " * 4_000),)
    (small,), _, _ = pinned(asked, 300)
    (large,), _, spent = pinned(asked, 1_000)
    assert small.cut
    assert large.cut
    assert len(large.text) > 2 * len(small.text)
    assert 800 < spent <= 1_000


def test_messages_of_one_turn_are_pinned_each_for_itself() -> None:
    asked = (Request(turn=1, text="word " * 2_000), Request(turn=1, text="and quickly"), Request(turn=2, text="go"))
    pins, dropped, _ = pinned(asked, 300)
    assert [(pin.turn, pin.cut) for pin in pins] == [(1, True), (1, False), (2, False)]
    assert dropped == 0
