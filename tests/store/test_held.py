"""Content that may not be at rest: kept in memory, within bounds, and gone when it is purged."""

from __future__ import annotations

from proxy.core.steps import Stored
from proxy.store.held import Held
from tests.store.samples import NOW, SCOPE, ask, compaction, digest, hidden, taught

OWNER = ("t", SCOPE)


def keep(held: Held, name: str, size: int = 0, now: float = NOW) -> None:
    results = (Stored(reference=f"r-{name}", text="x" * size),)
    held.remember("t", taught(conversation=name, results=results), now)


def test_the_longest_unused_goes_first_and_the_bound_holds() -> None:
    held = Held(size=1_000)
    for name in ("one", "two", "three"):
        keep(held, name, 300)
    assert held.result(OWNER, "r-one") is not None  # used again
    keep(held, "four", 300)
    assert held.result(OWNER, "r-two") is None
    assert [name for name in ("one", "three", "four") if held.result(OWNER, f"r-{name}")] == ["one", "three", "four"]
    keep(held, "large", 5_000)
    assert held._size <= 1_000


def test_a_row_that_is_remembered_twice_is_counted_once() -> None:
    held = Held()
    for _ in range(2):
        held.remember("t", taught(compaction=compaction("u1", 1), hidden=hidden("u1", b"[1]")), NOW)
    assert len(held.compactions(OWNER, (digest("u1"),), 16)) == len(held.hidden(OWNER, ask("u1"))) == 1
    before = held._size
    held.remember("t", taught(compaction=compaction("u1", 1)), NOW)
    assert held._size == before
    assert held.purge("t", NOW + 1) == 2
    assert held._size == 0


def test_what_reaches_furthest_is_told() -> None:
    held, path = Held(), tuple(digest(f"u{number}") for number in range(9, 0, -1))
    for number in range(1, 10):
        held.remember("t", taught(compaction=compaction(f"u{number}", number, f"cmp_{number}")), NOW)
    assert [each.messages for each in held.compactions(OWNER, path, 3)] == [7, 8, 9]
    assert held.compactions(("other", SCOPE), path, 3) == ()


def test_of_conversations_that_hold_nothing_any_more_nothing_stays() -> None:
    held = Held(size=1_000)
    for number in range(100):
        keep(held, f"conv_{number}", 300)
        held.remember("t", taught(conversation=f"empty_{number}"), NOW)
        held.use(OWNER, f"recalled_{number}", NOW)
    assert len(held._talks) == len(held._places) == 3
    assert held.purge("t", NOW + 1) == 3
    assert not held._talks


def test_rows_live_as_long_as_their_conversation_is_used() -> None:
    held = Held()
    keep(held, "used", 1)
    keep(held, "unused", 1)
    held.use(OWNER, "used", NOW + 100)
    assert held.purge("other", NOW + 50) == 0
    assert held.purge("t", NOW + 50) == 1
    assert held.result(OWNER, "r-used") is not None
    assert held.purge("t", NOW + 101) == 1
