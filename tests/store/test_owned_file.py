"""Conversations in a database file: what outlives its process, what goes with retention, what may not be at rest."""

from __future__ import annotations

import shutil
from pathlib import Path

from proxy.store.owned import Begun, Conversations
from proxy.store.sqlite import SqliteStore, from_url
from tests.store.owning import MINE, answer, begin, ids, owned, told, user
from tests.store.samples import NOW, Watch

DAY = 86_400.0


async def opened(path: Path) -> tuple[SqliteStore, Conversations]:
    store = SqliteStore(str(path))
    await store.open(NOW)
    assert store.conversations is not None
    return store, store.conversations


def killed(path: Path) -> Path:
    """The files as they are on the disk now: what a process that is killed leaves."""
    left = path.parent / "left" / path.name
    left.parent.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copyfile(path.parent / name, left.parent / name)
    return left


async def test_what_was_begun_and_finished_is_there_when_the_process_is_killed(database: Path) -> None:
    store, kept = await opened(database)
    await kept.create(*MINE, owned())
    for number in range(1, 9):
        await told(kept, number)
    await begin(kept, "run_9", user("u9"))
    await kept.interject(*MINE, "conv_1", [user("i9")], NOW)
    again, found = await opened(killed(database))
    assert ids(await found.path(*MINE, "conv_1")) == [f"{who}{n}" for n in range(1, 9) for who in "ua"] + ["u9"]
    now = await found.find(*MINE, "conv_1", NOW)
    was = await kept.find(*MINE, "conv_1", NOW)
    assert now is not None and was is not None and (was.run, now.run) == ("run_9", None)
    assert now.version > was.version
    assert isinstance(await begin(found, "run_10", user("u10")), Begun)  # nobody waits for a dead turn to expire
    assert await found.interjected(*MINE, "conv_1", "run_9") == ()
    await again.close()
    await store.close()


async def test_what_was_not_committed_is_whole_or_not_there(database: Path) -> None:
    watch = Watch()
    store = SqliteStore(str(database), connect=watch)
    await store.open(NOW)
    kept = store.conversations
    assert kept is not None
    await kept.create(*MINE, owned())
    await told(kept, 1)
    left: list[Path] = []

    def copied(_: object, sql: str) -> None:
        if sql == "COMMIT" and not left:
            left.append(killed(database))

    watch.before = copied
    await begin(kept, "run_2", user("u2"), user("u3"))
    again, found = await opened(left[0])
    assert ids(await found.path(*MINE, "conv_1")) == ["u1", "a1"]
    assert ids(await kept.path(*MINE, "conv_1")) == ["u1", "a1", "u2", "u3"]
    await again.close()
    await store.close()


async def test_a_purge_takes_conversations_by_their_last_use_with_their_items(database: Path) -> None:
    store, kept = await opened(database)
    for number in range(50):
        await kept.create(*MINE, owned(f"old_{number}"), [user(f"u{number}")])
    await kept.create(*MINE, owned())
    await told(kept, 1)
    await kept.create(*MINE, owned("conv_2", NOW + DAY), [user("x1")])
    await kept.create("t2", "k", owned("old_1"), [user("y1")])
    await begin(kept, "run_2", user("u2"))
    assert await store.purge("t", NOW) == 0
    # conv_1 has a turn that runs when the time is over.
    await kept.renew(*MINE, "conv_1", "run_2", NOW + 2 * DAY)
    assert await store.purge("t", NOW + DAY) == 100
    assert [each.id for each in await kept.listed(*MINE, NOW)] == ["conv_2", "conv_1"]
    assert ids(await kept.path(*MINE, "conv_1")) == ["u1", "a1", "u2"]
    await kept.finish(*MINE, "conv_1", "run_2", [answer("a2")], NOW)
    assert await store.purge("t", NOW + DAY) == 5
    assert ids(await kept.path(*MINE, "conv_2")) == ["x1"]
    assert ids(await kept.path("t2", "k", "old_1")) == ["y1"]
    await store.close()


async def test_conversations_are_not_kept_where_no_content_may_be_at_rest(database: Path) -> None:
    store = from_url(f"sqlite:///{database}", content=False)
    assert store.conversations is None
    kept, found = await opened(database)
    await found.create(*MINE, owned(), [user("u1")])
    await kept.close()
    await store.open(NOW)  # what an earlier run without this setting left goes with retention
    assert await store.purge("t", NOW + 1) == 2
    await store.close()
