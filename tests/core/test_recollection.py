"""What is kept of memory between calls is bounded."""

from __future__ import annotations

from proxy.core.recollection import Recollection, Turned
from tests.core.histories import user


def test_what_was_put_in_is_found_and_what_was_not_is_not() -> None:
    kept = Recollection()
    turned = Turned(places={0: (user("x"),)}, tokens=5)
    kept.put(("a", 1), turned, turned.tokens)
    assert kept.get(("a", 1)) is turned
    assert kept.get(("a", 2)) is None


def test_beyond_its_bound_it_begins_anew() -> None:
    kept = Recollection(most=3_000)
    turned = Turned(places={}, tokens=500)
    for number in range(3):
        kept.put(number, turned, 500)
    assert kept.get(0) is kept.get(2) is turned
    kept.put(3, turned, 500)
    assert kept.get(0) is None
    assert kept.get(3) is turned
