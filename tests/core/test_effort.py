"""The scale of reasoning effort, and the level that is asked for where a model knows only some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.effort import LEVELS, Effort, effort_of, nearest


def test_the_levels_are_in_order() -> None:
    assert LEVELS == ("none", "minimal", "low", "medium", "high", "xhigh")


@pytest.mark.parametrize(
    ("level", "supported", "asked"),
    [
        ("medium", ("low", "medium", "high"), "medium"),
        ("xhigh", ("low", "medium", "high"), "high"),
        ("none", ("low", "medium", "high"), "low"),
        ("minimal", ("none", "low", "medium", "high"), "low"),
        ("minimal", ("none", "high"), "none"),
        ("low", ("none", "high"), "high"),
        ("medium", ("none", "high"), "high"),
        ("medium", ("low", "high"), "high"),
        ("low", ("high",), "high"),
        ("low", (), None),
    ],
)
def test_the_nearest_level_is_asked_for_and_of_two_the_higher(
    level: Effort, supported: tuple[Effort, ...], asked: Effort | None
) -> None:
    assert nearest(level, supported) == asked
    assert nearest(level, supported[::-1]) == asked, "whatever their order"


@given(st.sampled_from(LEVELS), st.lists(st.sampled_from(LEVELS), min_size=1, unique=True))
def test_no_other_level_is_nearer(level: Effort, supported: list[Effort]) -> None:
    found = nearest(level, supported)
    assert found in supported
    assert found is not None
    distance = abs(LEVELS.index(found) - LEVELS.index(level))
    assert all(abs(LEVELS.index(each) - LEVELS.index(level)) >= distance for each in supported)
    assert (found == level) == (level in supported)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_read_as_it_is_called(level: Effort) -> None:
    assert effort_of(level) == level


@pytest.mark.parametrize("stated", [None, "", "High", "default", 3, True, ["low"], {"effort": "low"}])
def test_what_is_no_level_is_none(stated: object) -> None:
    assert effort_of(stated) is None


def test_the_most_that_some_providers_have_is_the_end_of_the_scale() -> None:
    assert effort_of("max") == "xhigh"
