"""Ids: random, of one shape, in the order of their time, never the same twice, also where a new draw begins."""

from __future__ import annotations

import re

from proxy.naming import Names


def test_ids_have_one_shape_and_never_repeat_across_many_draws() -> None:
    names = Names()
    made = [names.fresh("use_") for _ in range(5_000)]
    assert all(re.fullmatch(r"use_[0-9a-f]{32}", name) for name in made)
    assert len(set(made)) == len(made)


def test_ids_stand_in_the_order_of_their_time() -> None:
    times = iter((1.0, 1.5, 2_000_000_000.0))
    names = Names(lambda: next(times))
    made = [names.fresh("use_") for _ in range(3)]
    assert made == sorted(made)
    assert [int(name[4:16], 16) for name in made] == [1_000, 1_500, 2_000_000_000_000]


def test_what_is_drawn_has_the_size_asked_for_at_every_place_of_the_store() -> None:
    names = Names()
    assert {len(names.draw(26)) for _ in range(1_000)} == {26}
