"""Paths that were told before are told again without being read; whatever is done to a conversation meanwhile, what is
told is what the database holds."""

from __future__ import annotations

import random

import pytest

from proxy.store.kept import KeptConversations
from proxy.store.owned import Conversations
from proxy.store.owned_work import At
from proxy.store.paths import Paths
from tests.store.owning import MINE, answer, begin, ids, owned, user
from tests.store.samples import NOW

AT = At(*MINE, "conv_1")
SIZE = len(user("u").wire) + 700


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
