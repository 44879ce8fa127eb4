"""Paths that were told before are told again without being read; whatever is done to a conversation meanwhile, what is
told is what the database holds."""

from __future__ import annotations

import random
from asyncio import Future
from typing import TypeVar

import pytest

from proxy.store import rows
from proxy.store.conversations import Database, KeptConversations, Making
from proxy.store.owned import Conversations
from proxy.store.owned_work import At, Told, Work, shown
from proxy.store.paths import Paths
from tests.store.owning import MINE, answer, begin, ids, owned, user
from tests.store.samples import NOW

AT = At(*MINE, "conv_1")
SIZE = len(user("u").wire) + 700
T = TypeVar("T")


@pytest.mark.parametrize("seed", range(8))
async def test_a_path_is_the_same_as_one_that_nobody_told_before(conversations: Conversations, seed: int) -> None:
    assert isinstance(conversations, KeptConversations)
    draw = random.Random(seed)
    await conversations.create(*MINE, owned())
    for number in range(40):
        if draw.random() < 0.3:
            await conversations.rewind(*MINE, "conv_1", draw.randrange(1, 5), NOW)
        elif draw.random() < 0.2:
            more = [user(f"p{number}.{place}") for place in range(draw.randrange(1, 14))]
            await conversations.extend(*MINE, "conv_1", more, NOW)
        else:
            begun = await begin(conversations, f"run_{number}", user(f"u{number}"))
            back = draw.randrange(2)
            await conversations.finish(
                *MINE, "conv_1", f"run_{number}", [] if back else [answer(f"a{number}")], NOW, back=back
            )
            assert begun.path[-1].id == f"u{number}"
        anew = await KeptConversations(conversations._database).path(*MINE, "conv_1")
        assert await conversations.path(*MINE, "conv_1") == anew


class Watched:
    """A database, and the names of the statements that it was asked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.asked: list[str] = []

    async def read(self, at: At | None, making: Making[T]) -> T:
        return await self._database.read(at, lambda: self._seen(making()))

    async def write(self, at: At, making: Making[T]) -> T:
        return await self._database.write(at, lambda: self._seen(making()))

    def queue(self, at: At, making: Making[None]) -> Future[None]:
        return self._database.queue(at, lambda: self._seen(making()))

    def _seen(self, work: Work[T]) -> Work[T]:
        try:
            ask = next(work)
            while True:
                self.asked.append(ask.name)
                ask = work.send((yield ask))
        except StopIteration as done:
            result: T = done.value
            return result


async def test_a_turn_behind_an_answer_reads_no_item_but_the_newest(conversations: Conversations) -> None:
    assert isinstance(conversations, KeptConversations)
    watched = Watched(conversations._database)
    kept = KeptConversations(watched)
    await kept.create(*MINE, owned())
    for number in (1, 2):
        watched.asked.clear()
        begun = await begin(kept, f"run_{number}", user(f"u{number}"))
        await kept.finish(*MINE, "conv_1", f"run_{number}", [answer(f"a{number}")], NOW)
    assert ids(begun.path) == ["u1", "a1", "u2"]
    assert watched.asked == ["find", "add_item", "move", "find", "add_item", "interjected", "move"]


async def test_a_long_path_is_read_once(conversations: Conversations) -> None:
    assert isinstance(conversations, KeptConversations)
    await conversations.create(*MINE, owned(), [user(f"u{number}", int(not number)) for number in range(30)])
    first = await conversations.path(*MINE, "conv_1")
    begun = await begin(conversations, "run_1", user("v1"))
    assert all(one is other for one, other in zip(first, begun.path, strict=False))
    assert await conversations.delete(*MINE, "conv_1", NOW + 60)
    assert conversations._paths.of(AT) == ()


def test_the_paths_used_last_are_kept_within_the_budget() -> None:
    paths = Paths(5 * SIZE)
    places = [At("t", "k", name) for name in "abc"]
    for at in places:
        paths.keep(at, (user("u"), user("v")))
        paths.of(places[0])
    assert ids(paths.of(places[0])) == ["u", "v"]
    assert paths.of(places[1]) == ()
    paths.keep(places[2], tuple(user("u") for _ in range(6)))
    assert paths.of(places[2]) == ()
    for at in places:
        paths.forget(at)
    assert paths._left == 5 * SIZE


def test_a_path_that_grows_is_weighed_as_a_whole() -> None:
    paths = Paths(5 * SIZE)
    said = (user("u"), user("v"))
    paths.keep(AT, said)
    paths.keep(AT, (*said, user("w")))
    assert paths._left == 2 * SIZE
    paths.keep(AT, said[:1])
    assert paths._left == 4 * SIZE


def test_a_conversation_that_another_process_deletes_while_it_is_read_has_no_path() -> None:
    work = shown(AT)
    assert next(work).name == "find"
    newest = user("u1")
    found = ("conv_1", None, b"{}", "u1", 1, None, None, 0, NOW, NOW, None, newest.wire, rows.encode(newest))
    assert work.send(Told([found], 0)).name == "items"
    with pytest.raises(StopIteration) as read:
        work.send(Told([], 0))
    assert read.value.value == ()
