"""Several processes on one PostgreSQL: each sees what the others wrote, and what the dead left is taken up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.core.account import Account
from proxy.server.following import follow
from proxy.store import KeyRow, UsageQuery
from proxy.store.owned import Begun
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_statements import DEAD
from tests.postgres import Cluster
from tests.store.owning import MINE, answer, begin, ids, owned, user
from tests.store.samples import NOW, anchor, ask, compaction, digest, hidden, row, taught

PATIENCE = 20.0
KEY = KeyRow(id="team", tenant="t", digest=b"\x00\xff", created_at=NOW)


@pytest.fixture
async def two(shared: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    stores = PostgresStore(shared), PostgresStore(shared)
    for store in stores:
        assert await store.open(NOW) == 0
    yield stores
    for store in stores:
        await store.close()


def age(server: Cluster, store: PostgresStore) -> None:
    """As if the process had been silent since."""
    server.say(f"UPDATE instance SET seen_at = seen_at - {10 * DEAD} WHERE id = '{store._instance}'", "shared")


async def abandoned(url: str) -> PostgresStore:
    """A store that says nothing any more: its tasks end, as with a process that was killed."""
    store = PostgresStore(url)
    await store.open(NOW)
    for task in (store._presence._task, store._writer._task):
        assert task is not None
        task.cancel()
    return store


async def test_what_one_wrote_the_other_recalls(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    assert (await other.recall("t", ask("u2", "a1", "u1"), NOW)).conversation is None
    what = taught(reply="a1", anchor=anchor(100), compaction=compaction("u1", 1), hidden=hidden("u1", b"[1]"))
    await one.remember("t", what, NOW)
    memory = await other.recall("t", ask("u2", "a1", "u1", named=True), NOW)
    assert (memory.conversation, memory.anchor, memory.compactions) == ("conv_1", anchor(100), (what.compaction,))
    assert memory.hidden == (what.hidden,)
    await other.remember("t", taught(reply="a1", anchor=anchor(200)), NOW)
    assert (await one.recall("t", ask("a1"), NOW)).anchor == anchor(200)


async def test_settings_and_secrets_are_shared(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    assert await one.secret("scope") == await other.secret("scope")
    assert await other.account("t", "k", "ann") is None
    await one.set_account("t", "k", "ann", Account(threshold=0.5), NOW)
    assert await other.account("t", "k", "ann") == Account(threshold=0.5)


async def test_a_key_that_one_revokes_is_read_again_by_the_other(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    await one.add_key("t", KEY)
    read: asyncio.Queue[float | None] = asyncio.Queue()

    async def refresh() -> None:
        read.put_nowait((await other.keys())[0].revoked_at)

    following = asyncio.create_task(follow(other, refresh))
    async with asyncio.timeout(PATIENCE):
        assert await read.get() is None
        await one.revoke_key("t", "team", NOW)
        assert await read.get() == NOW
    following.cancel()
    await asyncio.wait([following])


async def test_a_lease_is_one_replicas_until_that_is_dead(
    two: tuple[PostgresStore, PostgresStore], server: Cluster, shared: str
) -> None:
    one, other = two
    claims = [store.claim("t", b"k", f"owner{n}", NOW, 100) for n in range(20) for store in (one, other)]
    assert sum(await asyncio.gather(*claims)) == 1
    dead = await abandoned(shared)
    assert await dead.claim("t", b"branch", "dead", NOW, 100)
    assert not await one.claim("t", b"branch", "alive", NOW, 100)
    age(server, dead)
    assert await one.claim("t", b"branch", "alive", NOW, 100)
    await dead._pool.close()


async def test_open_rows_of_the_living_stay_and_those_of_the_dead_are_closed_as_unknown(
    two: tuple[PostgresStore, PostgresStore], server: Cluster, shared: str
) -> None:
    living, other = two
    living.open_row(row("living"))
    await living.opened()
    dead = PostgresStore(shared)
    await dead.open(NOW)
    dead.open_row(row("dead"))
    await dead.opened()
    age(server, dead)
    third = PostgresStore(shared)
    assert await third.open(NOW) == 1
    found = {each.id: each.status for each in await other.usage(UsageQuery())}
    assert found == {"living": "open", "dead": "unknown"}
    # It was only slow: what it says of its own call holds.
    await dead.close_row(row("dead", status="ok"))
    await dead.close_row(row("dead", status="failed"))
    assert {each.id: each.status for each in await other.usage(UsageQuery())} == {"living": "open", "dead": "ok"}
    for store in (third, dead):
        await store.close()


async def test_a_row_left_open_by_a_store_that_closed_is_closed_by_the_next(shared: str) -> None:
    store = PostgresStore(shared)
    await store.open(NOW)
    store.open_row(row())
    await store.close()
    again = PostgresStore(shared)
    assert await again.open(NOW) == 1
    await again.close()


async def test_replicas_that_write_the_same_rows_do_not_stand_in_each_others_way(
    two: tuple[PostgresStore, PostgresStore],
) -> None:
    names = [f"a{number}" for number in range(40)]
    tasks = []
    for turn in range(5):
        for store, order in zip(two, (names, names[::-1]), strict=True):
            for name in order:
                what = taught(reply=name, conversation=f"conv_{name}", label="chat", anchor=anchor(turn))
                tasks.append(store.remember("t", what, NOW + 100 * turn))
    await asyncio.gather(*tasks)
    for name in names:
        one, other = [(await store.recall("t", ask(name), NOW)).anchor for store in two]
        assert one == other
        assert one is not None


async def test_a_purge_by_both_takes_each_row_once(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    await asyncio.gather(*(one.remember("t", taught(reply=digest(f"a{n}")), NOW) for n in range(500)))
    await asyncio.gather(*(one.remember("t2", taught(reply=digest(f"a{n}")), NOW) for n in range(500)))
    gone = await asyncio.gather(one.retire(NOW + 1), other.retire(NOW + 1))
    assert sum(gone) + await one.retire(NOW + 1) == 2 * 501


async def test_of_turns_that_both_begin_in_one_conversation_one_runs(
    two: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = (store.conversations for store in two)
    assert one is not None and other is not None
    await one.create(*MINE, owned())
    tried = [begin(kept, f"run_{n}", user(f"u{n}")) for n in range(10) for kept in (one, other)]
    ran = [each for each in await asyncio.gather(*tried) if isinstance(each, Begun)]
    assert len(ran) == 1
    run = ran[0].owned.run
    assert run is not None
    # What is said into it, and that it is to stop, reaches the replica that runs it.
    assert await other.interject(*MINE, "conv_1", [user("later", 0)], NOW)
    assert await other.cancel(*MINE, "conv_1", NOW)
    assert await one.renew(*MINE, "conv_1", run, NOW + 30) is True
    assert ids(await one.interjected(*MINE, "conv_1", run)) == ["later"]
    finishing = one.finish(*MINE, "conv_1", run, [answer("a1", final=True)], NOW)
    assert ids(await one.path(*MINE, "conv_1")) == [ran[0].path[-1].id, "a1"]  # behind what was queued
    await finishing
    assert ids(await other.path(*MINE, "conv_1")) == [ran[0].path[-1].id, "a1"]
    assert isinstance(await begin(other, "run_next", user("u_next")), Begun)


async def test_who_lives_closes_the_rows_of_who_died_meanwhile(
    two: tuple[PostgresStore, PostgresStore], server: Cluster, shared: str
) -> None:
    living, _ = two
    dead = await abandoned(shared)
    dead._writer.start()
    dead.open_row(row("dead"))
    await dead.opened()
    age(server, dead)
    for store in two:
        store._trouble.set()  # a look is due
    async with asyncio.timeout(PATIENCE):
        await living.ready()
    assert [each.status for each in await living.usage(UsageQuery())] == ["open"]  # they may have been cut off too
    living._presence._steady -= 2 * DEAD
    living._trouble.set()
    async with asyncio.timeout(PATIENCE):
        while [each.status for each in await living.usage(UsageQuery())] != ["unknown"]:
            await asyncio.sleep(0)
    await dead.close_row(row("dead", status="ok"))
    await dead._writer.stop()
    await dead._pool.close()
    assert [each.status for each in await living.usage(UsageQuery())] == ["ok"]
