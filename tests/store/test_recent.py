"""What is answered from memory equals what the database would have answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from proxy.core.steps import Anchor, Memory
from proxy.store.recent import Absent, Recent
from proxy.store.rows import LATELY, Known
from proxy.store.sqlite import REACH, SqliteStore
from tests.store.samples import NOW, Watch, anchor, ask, compaction, digest, taught

PATH = tuple(f"m{number}" for number in range(8, 0, -1))

starts = some.integers(0, len(PATH) - 1)
actions = some.one_of(
    some.tuples(some.just("recall"), starts, some.just(0)),
    some.tuples(some.just("reply"), starts, some.integers(1, 3)),
    some.tuples(some.just("compaction"), starts, some.integers(1, 3)),
    some.tuples(some.just("forget"), some.just(0), some.just(0)),
)


async def looked_over(store: SqliteStore) -> None:
    """All that the file holds has been loaded: the thread does a slice after each batch."""
    for _ in range(100):
        if store._absent.complete:
            return
        await store.ready()
    raise AssertionError("the file is not looked over")


class Model:
    """The rules of `recall`, in plain Python over all that was remembered."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[str, Anchor]] = {}
        self.compactions: dict[tuple[str, str], int] = {}

    def recall(self, path: tuple[str, ...]) -> Memory:
        known = [self.replies[name] for name in path if name in self.replies]
        found = [compaction(at, size, id) for (at, id), size in self.compactions.items() if at in path]
        return Memory(
            conversation=known[0][0] if known else None,
            anchor=known[0][1] if known else None,
            compactions=tuple(sorted(found, key=lambda one: (one.messages, one.id))),
        )


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(script=some.lists(actions, max_size=25), awaited=some.booleans())
async def test_a_recall_is_the_same_whether_or_not_it_is_answered_from_memory(
    script: list[tuple[str, int, int]], awaited: bool
) -> None:
    store, model = SqliteStore(":memory:"), Model()
    store._recent = Recent(store._absent, entries=12)  # so small that it turns all the time
    await store.open(NOW)
    waiting: list[asyncio.Task[None]] = []
    for number, (what, start, variant) in enumerate(script):
        path = PATH[start:]
        if what == "recall":
            assert await store.recall("t", ask(*path), NOW) == model.recall(path)
            continue
        if what == "forget":
            store._recent.forget()
            continue
        if what == "reply":
            told = taught(reply=path[0], conversation=f"conv_{variant}", anchor=anchor(number))
            first = model.replies.get(path[0], (f"conv_{variant}",))[0]
            model.replies[path[0]] = (first, anchor(number))
        else:
            told = taught(compaction=compaction(path[0], len(path), f"cmp_{variant}"))
            model.compactions[path[0], f"cmp_{variant}"] = len(path)
        waiting.append(store.remember("t", told, NOW))
        await (waiting[-1] if awaited else asyncio.sleep(0))
    assert await store.recall("t", ask(*PATH), NOW) == model.recall(PATH)
    await asyncio.gather(*waiting)
    assert await store.recall("t", ask(*PATH), NOW) == model.recall(PATH)
    await store.close()


async def test_a_conversation_that_goes_on_is_recalled_without_the_database(database: Path) -> None:
    watch = Watch()
    store = SqliteStore(str(database), connect=watch)
    await store.open(NOW)
    await looked_over(store)
    said: list[str] = []
    watch.before = lambda _, sql: said.append(sql)
    path: tuple[str, ...] = ()
    for turn in range(5):
        path = (f"u{turn}", *path)
        memory = await store.recall("t", ask(*path, label="chat" if turn else None), NOW)
        assert memory.anchor == (anchor(turn - 1) if turn else None)
        reads = [line for line in said if line.startswith("SELECT")]
        assert reads == [] or turn == 0, reads
        path = (f"a{turn}", *path)
        await store.remember("t", taught(reply=path[0], label="chat", anchor=anchor(turn)), NOW)
        said.clear()
    await store.close()


async def test_what_is_stored_already_is_not_written_again_until_its_use_must_be_marked(database: Path) -> None:
    watch = Watch()
    store = SqliteStore(str(database), connect=watch)
    await store.open(NOW)
    try:
        what = taught(request=digest("q"), reply=digest("a"), anchor=anchor())
        await store.recall("t1", ask("q"), NOW)
        await store.remember("t1", what, NOW)
        said: list[str] = []
        watch.before = lambda _, sql: said.append(sql)
        await store.remember("t1", what, NOW + 1)
        assert said == []
        await store.remember("t1", msgspec.structs.replace(what, anchor=anchor(2000)), NOW + 2)
        assert any(sql.startswith("UPDATE reply") for sql in said)
        found = await store.recall("t1", ask("a", "q"), NOW + 3)
        assert found.anchor == anchor(2000)
        said.clear()
        await store.remember("t1", msgspec.structs.replace(what, anchor=anchor(2000)), NOW + 2 * LATELY)
        assert any(sql.startswith("UPDATE conversation") for sql in said)
    finally:
        watch.before = None
        await store.close()


async def test_a_restarted_store_asks_only_for_what_may_be_there(database: Path) -> None:
    store = SqliteStore(str(database))
    await store.open(NOW)
    for number in range(50):
        await store.remember("t", taught(reply=f"a{number}", compaction=compaction(f"u{number}", 1)), NOW)
    await store.close()
    watch = Watch()
    again = SqliteStore(str(database), connect=watch)
    await again.open(NOW)
    await looked_over(again)
    said: list[str] = []
    watch.before = lambda _, sql: said.append(sql)
    assert await again.recall("t", ask("never"), NOW) == Memory()
    assert said == []
    memory = await again.recall("t", ask("u50", "a49", "u49"), NOW)
    assert (memory.conversation, len(memory.compactions)) == ("conv_1", 1)
    await again.close()


@given(stored=some.sets(some.binary(max_size=40)), others=some.sets(some.binary(max_size=40)))
def test_what_was_stored_is_never_called_absent(stored: set[bytes], others: set[bytes]) -> None:
    absent = Absent(bits=1 << 10)
    assert not any(absent.certain(one) for one in stored | others)  # not before all has been loaded
    half = sorted(stored)[: len(stored) // 2]
    absent.load(half)
    for one in stored - set(half):
        absent.add(one)
    absent.complete = True
    assert not any(absent.certain(one) for one in stored)


def test_most_of_what_was_never_stored_is_called_absent() -> None:
    absent = Absent()
    absent.load(digest(f"stored{number}") for number in range(100_000))
    absent.complete = True
    assert sum(absent.certain(digest(f"other{number}")) for number in range(1_000)) > 990


def test_the_copy_is_bounded_in_entries_and_in_bytes() -> None:
    owner, recent = ("t", b"s"), Recent(Absent(), entries=100, size=10_000)
    for number in range(1_000):
        recent.keep(owner, [digest(f"d{number}")], {}, recent.era)
    assert recent._young.entries + recent._old.entries <= 100
    for number in range(1_000):
        at = digest(f"big{number}")
        recent.keep(owner, [at], {at: Known(size=3_000)}, recent.era)
    assert recent._young.size + recent._old.size <= 16_000
    for number in range(1_000):
        recent.keep_label(owner, f"label{number}", "c", recent.era)
    assert len(recent._young.labels) + len(recent._old.labels) <= 100


def test_what_was_read_before_a_write_was_queued_is_not_kept() -> None:
    recent, owner, at = Recent(Absent()), ("t", b"s"), digest("d")
    recent.expect(owner, [at])
    recent.expect(owner, [at])
    recent.keep(owner, [at], {}, recent.era)
    assert recent.lookup(owner, [at]) == ([], [at])
    recent.settle(owner, [at], {at: Known(conversation="first")}, recent.era)
    assert recent.lookup(owner, [at]) == ([], [at])  # the second is still under way
    recent.settle(owner, [at], {at: Known(conversation="second")}, recent.era)
    recent.keep(owner, [at], {}, recent.era)
    assert recent.lookup(owner, [at]) == ([(at, Known(conversation="second"))], [])


@pytest.mark.parametrize("era", [0, 1])
def test_what_was_read_before_a_purge_is_not_kept(era: int) -> None:
    recent, owner, at = Recent(Absent()), ("t", b"s"), digest("d")
    recent.forget()
    recent.keep(owner, [at], {at: Known(conversation="c")}, era)
    stored, unseen = recent.lookup(owner, [at])
    assert (len(stored), len(unseen)) == ((1, 0) if era == recent.era else (0, 1))


async def test_a_long_branch_is_told_of_the_compactions_that_reach_furthest() -> None:
    store = SqliteStore(":memory:")
    await store.open(NOW)
    places = [f"u{number}" for number in range(REACH + 5)]
    for number, place in enumerate(places, 1):
        await store.remember("t", taught(compaction=compaction(place, number, f"cmp_{number}")), NOW)
    path = ask(*reversed(places))
    for _ in range(2):
        memory = await store.recall("t", path, NOW)
        assert [found.messages for found in memory.compactions] == list(range(6, REACH + 6))
    rewound = await store.recall("t", ask(*reversed(places[:3])), NOW)
    assert [found.messages for found in rewound.compactions] == [1, 2, 3], "what was out of reach is there for a rewind"
    await store.close()
