"""What upstreams taught us, believed for a day, per upstream and model."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.calibration import LIFETIME, Calibrations
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import Limits, Ratio, Remember
from proxy.store import Calibration

NOW = 1_800_000_000.0
PLAIN = ModelCard(name="m")
CARD = ModelCard(name="m", window=32_000, input_limit=30_000)


def lesson(**more: Any) -> Remember:
    return Remember(scope=b"", agent="a", conversation="c", **more)


def learned(total: int | None = None, input: int | None = None, expires_at: float = NOW + 10) -> Calibrations:
    limits = Limits(total=total, input=input, source="learned")
    return Calibrations((Calibration(upstream="main", model="m", limits=limits, expires_at=expires_at),))


@pytest.mark.parametrize(
    ("known", "window", "card", "expected"),
    [
        (Calibrations(), None, PLAIN, Limits()),
        (Calibrations(), None, CARD, Limits(total=32_000, input=30_000, source="catalogue")),
        (Calibrations(), None, ModelCard(name="m", input_limit=9), Limits(input=9, source="catalogue")),
        (Calibrations(), 8_000, CARD, Limits(total=8_000, source="policy")),
        (learned(4_000), None, PLAIN, Limits(total=4_000, source="learned")),
        (learned(4_000), None, CARD, Limits(total=4_000, input=30_000, source="learned")),
        (learned(None, 3_000), None, CARD, Limits(total=32_000, input=3_000, source="learned")),
        (learned(4_000), 8_000, CARD, Limits(total=4_000, source="learned")),
        (learned(9_000), 8_000, CARD, Limits(total=8_000, source="learned")),
        (learned(None, 3_000), 8_000, CARD, Limits(total=8_000, input=3_000, source="learned")),
        (learned(4_000, expires_at=NOW), 8_000, CARD, Limits(total=8_000, source="policy")),
        (learned(4_000, expires_at=NOW), None, PLAIN, Limits()),
    ],
)
def test_the_window_is_the_policys_then_what_was_learned_then_the_catalogues(
    known: Calibrations, window: int | None, card: ModelCard, expected: Limits
) -> None:
    assert known.limits(Policy(window=window), card, "main", NOW) == expected


def test_what_one_upstream_taught_does_not_hold_for_another() -> None:
    known = learned(4_000)
    assert known.limits(Policy(), PLAIN, "other", NOW) == Limits()
    assert known.limits(Policy(), ModelCard(name="n"), "main", NOW) == Limits()
    assert known.of("other", "m") == Calibration(upstream="other", model="m")


def test_a_learned_window_is_written_at_once_and_lives_for_a_day() -> None:
    known = Calibrations()
    entry = known.take("main", "m", lesson(learned=Limits(total=4_000, source="learned")), NOW)
    assert entry is not None
    assert (entry.limits, entry.expires_at) == (Limits(total=4_000, source="learned"), NOW + LIFETIME)
    assert known.of("main", "m") == entry
    assert known.limits(Policy(), PLAIN, "main", NOW + LIFETIME - 1).total == 4_000
    assert known.limits(Policy(), PLAIN, "main", NOW + LIFETIME).total is None


def test_everything_that_is_known_can_be_listed_in_order() -> None:
    known = Calibrations(tuple(Calibration(upstream=name, model="m") for name in ("b", "a")))
    assert [entry.upstream for entry in known.known] == ["a", "b"]


def test_input_and_total_limits_are_kept_apart_and_both() -> None:
    known = Calibrations()
    known.take("main", "m", lesson(learned=Limits(total=4_000, source="learned")), NOW)
    known.take("main", "m", lesson(learned=Limits(input=3_000, source="learned")), NOW + 1)
    assert known.limits(Policy(), PLAIN, "main", NOW + 2) == Limits(total=4_000, input=3_000, source="learned")


def test_a_limit_that_has_expired_does_not_live_on_with_a_newer_one() -> None:
    known = Calibrations()
    known.take("main", "m", lesson(learned=Limits(total=4_000, source="learned")), NOW)
    later = NOW + LIFETIME + 1
    known.take("main", "m", lesson(learned=Limits(input=3_000, source="learned")), later)
    assert known.limits(Policy(), PLAIN, "main", later) == Limits(input=3_000, source="learned")


def test_samples_teach_the_ratios_of_estimates_and_of_counts() -> None:
    known = Calibrations()
    assert known.ratios("main", "m") == (Ratio(), Ratio())
    known.take("main", "m", lesson(sample=(150, 100, 0)), NOW)
    assert known.ratios("main", "m") == (Ratio(value=1.5, samples=1), Ratio())
    known.take("main", "m", lesson(sample=(150, 100, 120)), NOW)
    estimate, exact = known.ratios("main", "m")
    assert (estimate.samples, exact) == (2, Ratio(value=1.25, samples=1))


def test_a_call_that_taught_nothing_writes_nothing() -> None:
    known = Calibrations()
    assert known.take("main", "m", lesson(), NOW) is None
    assert known.of("main", "m").estimate.samples == 0


def test_ratios_are_written_often_at_first_and_now_and_then_later() -> None:
    known = Calibrations()
    written = [number for number in range(1, 101) if known.take("main", "m", lesson(sample=(2, 1, 0)), NOW)]
    assert written == [1, 2, 3, 4, 32, 64, 96]


def test_what_was_stored_is_believed_again_after_a_restart() -> None:
    known = Calibrations()
    entry = known.take("main", "m", lesson(learned=Limits(total=9, source="learned"), sample=(3, 2, 1)), NOW)
    assert entry is not None
    again = Calibrations((entry,))
    assert again.of("main", "m") == entry


def test_names_that_clients_make_up_do_not_fill_the_memory_nor_the_store() -> None:
    full = tuple(Calibration(upstream="main", model=f"m{number}") for number in range(10_000))
    known = Calibrations(full)
    limits = Limits(total=4_000, source="learned")
    assert known.take("main", "new", lesson(learned=limits), NOW) is None
    assert known.of("main", "new").limits is None
    assert known.take("main", "m7", lesson(learned=limits), NOW) is not None
    assert known.of("main", "m7").limits == limits
