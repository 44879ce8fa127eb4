"""Counters, gauges and histograms: what they add up to, and what bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.counted import MOST, Families, Spread

BOUNDS = (0.1, 0.5, 1, 10)


@given(st.lists(st.floats(0, 20), max_size=600), st.lists(st.integers(1, 300), max_size=5))
def test_every_observation_counts_in_the_first_bucket_that_it_does_not_exceed(
    values: Sequence[float], sorted_in_at: Sequence[int]
) -> None:
    spread = Spread(BOUNDS)
    for number, value in enumerate(values):
        spread.observe(value)
        if number in sorted_in_at:
            spread.sort_in()
    counts, total = spread.read()
    edges = (float("-inf"), *BOUNDS, float("inf"))
    wanted = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert counts == wanted
    assert total == pytest.approx(sum(values))
    assert spread.read() == (counts, total)  # reading counts nothing twice


def test_what_was_observed_is_sorted_in_for_all_at_once() -> None:
    families = Families()
    spread = families.histogram("waits", "Waits.", BOUNDS, "of").labels("one")
    families.counter("others", "Others.")
    spread.observe(0.3)
    families.sort_in()
    assert spread._waiting == []
    assert families.registry.get_sample_value("waits_bucket", {"of": "one", "le": "0.5"}) == 1
    spread.observe(0.2)  # the same bound method as before
    assert families.registry.get_sample_value("waits_count", {"of": "one"}) == 2


def test_a_metric_has_so_many_series_and_no_more_whatever_its_labels_are() -> None:
    families = Families()
    family = families.counter("odd", "Odd.", "one", "two")
    for number in range(MOST + 500):
        family.labels(str(number), "x").inc()
    assert len(family.children) == MOST + 1
    assert family.labels("other", "other").value == 500
    assert family.labels("0", "x").value == 1  # those before the bound keep their names
