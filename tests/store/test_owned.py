"""What every keeper of conversations promises, whatever the database: a new fulfilment passes this suite unchanged."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from proxy.store.owned import Begun, Conversations, Item, Owned
from tests.store.owning import MINE, answer, begin, ids, item, owned, told, turns, user
from tests.store.samples import NOW

OTHERS = (("t", "k2"), ("t2", "k"), ("t", ""), ("tk", ""), ("", "tk"))


# -- making and finding ----------------------------------------------------------------------------------------------


async def test_a_conversation_is_found_as_it_was_made(conversations: Conversations) -> None:
    made = await conversations.create(*MINE, owned(metadata={"topic": "é \ud800"}, end_user="ann"))
    assert made == owned(metadata={"topic": "é \ud800"}, end_user="ann")
    assert await conversations.find(*MINE, "conv_1", NOW) == made
    assert await conversations.path(*MINE, "conv_1") == ()
    assert await conversations.find(*MINE, "conv_2", NOW) is None


async def test_what_a_conversation_begins_with_is_its_path(conversations: Conversations) -> None:
    first = [user("u1"), item("a1", "assistant", 1), item("u2", "user", 2)]
    made = await conversations.create(*MINE, owned(), first)
    assert (made.head, made.last) == ("u2", first[2])
    assert await conversations.path(*MINE, "conv_1") == tuple(first)
    assert await conversations.find(*MINE, "conv_1", NOW) == made


async def test_all_that_is_known_of_an_answer_comes_back(conversations: Conversations) -> None:
    whole = Item(
        id="a1",
        turn=0,
        role="assistant",
        wire=b'{"role":"assistant",  "content":"\\ud83d"}',
        created_at=NOW,
        status="cancelled",
        reasoning="hm \ud800",
        final=True,
        finish="stop",
        request="req_1",
        model="m",
        tokens=12,
        window=100,
        compaction="cmp_1",
        effort="high",
        paused=True,
    )
    await conversations.create(*MINE, owned())
    await begin(conversations, "run", user("u1"))
    await conversations.finish(*MINE, "conv_1", "run", [whole], NOW)
    whole = msgspec.structs.replace(whole, turn=1)
    assert (await conversations.path(*MINE, "conv_1"))[-1] == whole
    found = await conversations.find(*MINE, "conv_1", NOW)
    assert found is not None and found.last == whole


async def test_another_keys_conversation_is_a_missing_one(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await told(conversations, 1)
    await begin(conversations, "run_2", user("u2"))
    for other in OTHERS:
        assert await conversations.find(*other, "conv_1", NOW) is None
        assert await conversations.listed(*other, NOW) == ()
        assert await conversations.path(*other, "conv_1") == ()
        assert await conversations.describe(*other, "conv_1", {"a": "b"}, NOW) is None
        begun = await conversations.begin(*other, "conv_1", "run_2", [user("x")], end_user=None, now=NOW, seconds=1)
        assert begun is None
        assert await conversations.extend(*other, "conv_1", [user("x")], NOW) is None
        assert await conversations.renew(*other, "conv_1", "run_2", NOW + 99) is None
        assert not await conversations.interject(*other, "conv_1", [user("x")], NOW)
        assert await conversations.interjected(*other, "conv_1", "run_2") == ()
        await conversations.finish(*other, "conv_1", "run_2", [answer("x")], NOW)
        assert not await conversations.cancel(*other, "conv_1", NOW)
        assert await conversations.rewind(*other, "conv_1", 1, NOW) is None
        assert await conversations.delete(*other, "conv_1", NOW) is False
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "a1", "u2"]
    found = await conversations.find(*MINE, "conv_1", NOW)
    assert found is not None and (found.run, found.metadata) == ("run_2", {})


async def test_two_keys_may_have_conversations_of_one_id(conversations: Conversations) -> None:
    for place, who in enumerate((MINE, *OTHERS)):
        await conversations.create(*who, owned(metadata={"of": str(place)}), [item("u1", text=str(place), turn=1)])
    for place, who in enumerate((MINE, *OTHERS)):
        found = await conversations.find(*who, "conv_1", NOW)
        assert found is not None and found.metadata == {"of": str(place)}
        assert [msgspec.json.decode(each.wire)["content"] for each in await conversations.path(*who, "conv_1")] == [
            str(place)
        ]


async def test_conversations_are_listed_by_time_in_pages_of_either_direction(conversations: Conversations) -> None:
    for number in (3, 1, 2, 5, 4):
        # 2 and 3 were made at one time: ids decide.
        await conversations.create(
            *MINE, owned(f"conv_{number}", NOW + (2 if number == 3 else number), end_user="ann" if number > 3 else None)
        )

    async def listed(**more: object) -> list[str]:
        found = await conversations.listed(*MINE, NOW, **more)  # type: ignore[arg-type] # each test's own
        return [each.id[-1] for each in found]

    assert await listed() == ["5", "4", "3", "2", "1"]
    assert await listed(newest_first=False) == ["1", "2", "3", "4", "5"]
    assert await listed(limit=2) == ["5", "4"]
    assert await listed(limit=2, after="conv_4") == ["3", "2"]
    assert await listed(after="conv_2", newest_first=False) == ["3", "4", "5"]
    assert await listed(after="conv_9") == []
    assert await listed(end_user="ann") == ["5", "4"]
    assert await listed(end_user="ann", after="conv_5") == ["4"]
    assert await listed(end_user="ann", after="conv_4", newest_first=False) == ["5"]
    assert await listed(end_user="bob") == []


async def test_metadata_is_replaced_whole(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned(metadata={"a": "1"}), [user("u1")])
    changed = await conversations.describe(*MINE, "conv_1", {"b": "2"}, NOW + 1)
    assert changed is not None and (changed.metadata, changed.head) == ({"b": "2"}, "u1")
    assert await conversations.find(*MINE, "conv_1", NOW) == changed


# -- turns -----------------------------------------------------------------------------------------------------------


async def test_a_turn_is_begun_and_finished(conversations: Conversations) -> None:
    made = await conversations.create(*MINE, owned())
    begun = await begin(conversations, "run_1", user("u1"), at=NOW + 1)
    assert isinstance(begun, Begun)
    assert (ids(begun.path), turns(begun.path), begun.new) == (["u1"], [1], 1)
    assert (begun.owned.run, begun.owned.head, begun.owned.last) == ("run_1", "u1", begun.path[-1])
    assert await conversations.find(*MINE, "conv_1", NOW + 2) == begun.owned
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("a1")], NOW + 3)
    found = await conversations.find(*MINE, "conv_1", NOW + 3)
    assert found is not None and (found.run, found.head) == (None, "a1")
    assert made.version < begun.owned.version < found.version
    assert (begun.owned.last_used, found.last_used, found.created_at) == (NOW + 1, NOW + 3, NOW)


async def test_turns_are_counted_from_the_head(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", item("s1", "system", 1), user("u1"))
    call = item("c1", "assistant", 0)
    await conversations.finish(*MINE, "conv_1", "run_1", [call], NOW)
    await begin(conversations, "run_2", item("r1", "tool", 0))
    await conversations.finish(*MINE, "conv_1", "run_2", [answer("a1")], NOW)
    await begin(conversations, "run_3", user("u2"), user("u3"))
    path = await conversations.path(*MINE, "conv_1")
    assert ids(path) == ["s1", "u1", "c1", "r1", "a1", "u2", "u3"]
    assert turns(path) == [1, 1, 1, 1, 1, 2, 2]


async def test_a_second_turn_is_not_begun_while_one_runs(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    first = await begin(conversations, "run_1", user("u1"))
    second = await begin(conversations, "run_2", user("u2"), at=NOW + 29)
    assert isinstance(second, Owned) and second == first.owned
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1"]


async def test_of_many_that_begin_at_once_one_does(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    for round in range(5):
        begun = await asyncio.gather(
            *(begin(conversations, f"run_{round}_{n}", user(f"u{round}_{n}")) for n in range(20))
        )
        (one,) = (each for each in begun if isinstance(each, Begun))
        assert {each.run for each in begun if isinstance(each, Owned)} == {one.owned.run}
        ends = [
            conversations.finish(*MINE, "conv_1", f"run_{round}_{n}", [answer(f"a{round}_{n}")], NOW) for n in range(20)
        ]
        await asyncio.gather(*ends)
    path = await conversations.path(*MINE, "conv_1")
    assert [each.role for each in path] == ["user", "assistant"] * 5
    assert all(said.id[1:] == told.id[1:] for said, told in zip(path[::2], path[1::2], strict=True))
    assert turns(path) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


async def test_a_run_whose_owner_is_gone_is_taken_over_and_its_owner_writes_no_more(
    conversations: Conversations,
) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    gone = await conversations.find(*MINE, "conv_1", NOW + 30)
    assert gone is not None and gone.run is None
    assert isinstance(await begin(conversations, "run_2", user("u2"), at=NOW + 30), Begun)
    assert await conversations.renew(*MINE, "conv_1", "run_1", NOW + 99) is None
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("late")], NOW + 31)
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "u2"]
    found = await conversations.find(*MINE, "conv_1", NOW + 31)
    assert found is not None and found.run == "run_2"


@pytest.mark.parametrize(("back", "left"), [(1, ["u1", "a1", "u2"]), (2, ["u1", "a1"]), (9, [])])
async def test_a_turn_that_was_refused_takes_back_what_it_began_with(
    conversations: Conversations, back: int, left: list[str]
) -> None:
    await conversations.create(*MINE, owned())
    await told(conversations, 1)
    await begin(conversations, "run_2", user("u2"), user("u3"))
    await conversations.finish(*MINE, "conv_1", "run_1", [], NOW, back=back)  # not its run
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "a1", "u2", "u3"]
    await conversations.interject(*MINE, "conv_1", [user("i2", 0)], NOW)
    await conversations.finish(*MINE, "conv_1", "run_2", [], NOW, back=back)
    found = await conversations.find(*MINE, "conv_1", NOW)
    assert found is not None and found.run is None
    assert ids(await conversations.path(*MINE, "conv_1")) == [*left, "i2"]


async def test_a_run_lives_as_long_as_it_is_renewed(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    assert await conversations.renew(*MINE, "conv_1", "run_1", NOW + 60) is False
    assert isinstance(await begin(conversations, "run_2", user("u2"), at=NOW + 59), Owned)
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("a1")], NOW + 61)  # late, but nobody took over
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "a1"]
    assert await conversations.renew(*MINE, "conv_1", "run_1", NOW + 99) is None


async def test_a_request_that_is_sent_again_unanswered_is_not_put_twice(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await told(conversations, 0)
    await begin(conversations, "run_1", user("u1", text="go"), user("u2", text="on"))
    await conversations.finish(*MINE, "conv_1", "run_1", [], NOW)
    again = await begin(conversations, "run_2", user("u3", text="go"), user("u4", text="on"))
    assert (ids(again.path), again.new) == (["u0", "a0", "u1", "u2"], 2)
    await conversations.finish(*MINE, "conv_1", "run_2", [answer("a1")], NOW)
    more = await begin(conversations, "run_3", user("u5", text="on"))
    assert (ids(more.path)[-2:], more.new) == (["a1", "u5"], 1)  # an answer stands between: said once more


async def test_items_that_differ_from_the_last_are_put_beside_them(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned(), [user("u1", text="go")])
    other = await begin(conversations, "run_1", user("u2", turn=0, text="went"))
    assert (ids(other.path), turns(other.path), other.new) == (["u1", "u2"], [1, 1], 2)
    await conversations.finish(*MINE, "conv_1", "run_1", [], NOW)
    longer = await begin(conversations, "run_2", *(user(f"v{n}", turn=0, text="go") for n in range(3)))
    assert (len(longer.path), longer.new) == (5, 5)


async def test_an_item_whose_id_is_there_is_not_put_twice(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await told(conversations, 1)
    begun = await begin(conversations, "run_2", user("u1"), user("u2"))
    assert (ids(begun.path), begun.new) == (["u1", "a1", "u2"], 1)


async def test_an_item_whose_id_is_on_a_branch_that_was_left_is_put_again(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await told(conversations, 1)
    await begin(conversations, "run_2", user("u2"))
    await conversations.finish(*MINE, "conv_1", "run_2", [], NOW, back=1)
    again = await begin(conversations, "run_3", user("u2"))  # the same request, after it was refused
    assert (ids(again.path), turns(again.path), again.new) == (["u1", "a1", "u2"], [1, 1, 2], 1)
    await conversations.finish(*MINE, "conv_1", "run_3", [answer("a2")], NOW)
    await conversations.rewind(*MINE, "conv_1", 2, NOW)
    elsewhere = await begin(conversations, "run_4", user("u2"), user("a2", text="mine"))
    assert [each.role for each in elsewhere.path] == ["user", "user"] and elsewhere.new == 2
    assert len({*ids(elsewhere.path), "u2", "a2", "u1", "a1"}) == 6
    assert elsewhere.path[1].wire == user("a2", text="mine").wire
    await conversations.finish(*MINE, "conv_1", "run_4", [answer("a4")], NOW)
    assert ids(await conversations.path(*MINE, "conv_1")) == [*ids(elsewhere.path), "a4"]


async def test_a_conversation_takes_the_user_of_its_first_turn_and_no_other(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    assert (await begin(conversations, "run_1", user("u1"), end_user="ann")).owned.end_user == "ann"
    await conversations.finish(*MINE, "conv_1", "run_1", [], NOW)
    await conversations.rewind(*MINE, "conv_1", 1, NOW)
    assert (await begin(conversations, "run_2", user("u2"), end_user="bob")).owned.end_user == "ann"


@pytest.mark.parametrize("rewound", [False, True])
async def test_a_conversation_that_has_items_and_no_user_takes_none(
    conversations: Conversations, rewound: bool
) -> None:
    await conversations.create(*MINE, owned(), [user("u1")])
    if rewound:
        await conversations.rewind(*MINE, "conv_1", 1, NOW)
    assert (await begin(conversations, "run_1", user("u2"), end_user="ann")).owned.end_user is None


# -- what happens beside a turn --------------------------------------------------------------------------------------


async def test_items_are_put_while_nothing_runs(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    changed = await conversations.extend(*MINE, "conv_1", [user("u1"), item("a1", "assistant", 1)], NOW)
    assert changed is not None and (changed.head, changed.run) == ("a1", None)
    begun = await begin(conversations, "run_1", user("u2"))
    refused = await conversations.extend(*MINE, "conv_1", [user("u3")], NOW)
    assert refused == begun.owned
    changed = await conversations.extend(*MINE, "conv_1", [user("u3")], NOW + 30)  # the run is over, its owner gone
    assert changed is not None and (changed.run, turns(await conversations.path(*MINE, "conv_1"))) == (
        None,
        [1, 1, 2, 3],
    )
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("late")], NOW + 31)
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "a1", "u2", "u3"]


async def test_what_is_said_into_a_turn_is_read_once_in_order(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    assert not await conversations.interject(*MINE, "conv_1", [user("i0")], NOW)
    await begin(conversations, "run_1", user("u1"))
    await asyncio.gather(*(conversations.interject(*MINE, "conv_1", [user(f"i{n}", 0)], NOW) for n in range(12)))
    assert await conversations.interject(*MINE, "conv_1", [user("j0", 0), user("j1", 0)], NOW)
    assert await conversations.interjected(*MINE, "conv_1", "run_0") == ()
    taken = await conversations.interjected(*MINE, "conv_1", "run_1")
    assert taken[:-2] == tuple(user(f"i{n}", 0) for n in range(12))
    assert ids(taken[-2:]) == ["j0", "j1"]
    assert await conversations.interjected(*MINE, "conv_1", "run_1") == ()
    await conversations.finish(*MINE, "conv_1", "run_1", [*taken[:1], answer("a1")], NOW)
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "i0", "a1"]
    assert not await conversations.interject(*MINE, "conv_1", [user("i9")], NOW)


async def test_what_was_said_into_a_turn_and_not_read_stands_unanswered_behind_it(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    for name in ("i1", "i2"):
        await conversations.interject(*MINE, "conv_1", [user(name, 0)], NOW)
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("a1")], NOW)
    path = await conversations.path(*MINE, "conv_1")
    assert (ids(path), turns(path)) == (["u1", "a1", "i1", "i2"], [1, 1, 2, 2])
    begun = await begin(conversations, "run_2", user("i1"))
    assert (ids(begun.path), begun.new) == (ids(path), 2)  # it is there already, and so is what came with it
    assert await conversations.interjected(*MINE, "conv_1", "run_2") == ()


async def test_what_was_said_into_a_turn_before_it_asked_is_no_answer(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    await conversations.interject(*MINE, "conv_1", [user("i1", 0)], NOW)
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("a1", paused=True)], NOW)
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1", "a1"]


async def test_what_is_there_already_is_not_left_for_a_turn_twice(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    for name in ("i1", "u1", "i1"):
        assert await conversations.interject(*MINE, "conv_1", [user(name, 0)], NOW)
    assert ids(await conversations.interjected(*MINE, "conv_1", "run_1")) == ["i1"]


async def test_what_was_said_into_a_turn_whose_owner_is_gone_is_not_read_by_the_next(
    conversations: Conversations,
) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    await conversations.interject(*MINE, "conv_1", [user("i1")], NOW)
    assert not await conversations.interject(*MINE, "conv_1", [user("i2")], NOW + 30)
    await begin(conversations, "run_2", user("u2"), at=NOW + 30)
    assert await conversations.interjected(*MINE, "conv_1", "run_2") == ()
    assert await conversations.interjected(*MINE, "conv_1", "run_1") == ()


async def test_a_running_turn_is_told_that_it_is_to_stop_and_the_next_is_not(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    assert not await conversations.cancel(*MINE, "conv_1", NOW)
    await begin(conversations, "run_1", user("u1"))
    assert not await conversations.cancel(*MINE, "conv_1", NOW + 30)
    assert await conversations.renew(*MINE, "conv_1", "run_1", NOW + 60) is False
    assert await conversations.cancel(*MINE, "conv_1", NOW + 30)
    assert await conversations.renew(*MINE, "conv_1", "run_1", NOW + 60) is True
    await conversations.finish(*MINE, "conv_1", "run_1", [answer("a1", status="cancelled")], NOW)
    await begin(conversations, "run_2", user("u2"))
    assert await conversations.renew(*MINE, "conv_1", "run_2", NOW + 60) is False


# -- going back ------------------------------------------------------------------------------------------------------


async def test_a_rewind_takes_back_turns_and_a_new_branch_grows_there(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    for number in (1, 2, 3):
        await told(conversations, number)
    before = await conversations.find(*MINE, "conv_1", NOW)
    back = await conversations.rewind(*MINE, "conv_1", 2, NOW + 1)
    assert before is not None and isinstance(back, Owned)
    assert (back.head, back.version > before.version, back.last_used) == ("a1", True, NOW + 1)
    begun = await begin(conversations, "run_4", user("u4"))
    assert (ids(begun.path), turns(begun.path)) == (["u1", "a1", "u4"], [1, 1, 2])
    # A message that stands on the branch which was left is new on this one.
    await conversations.finish(*MINE, "conv_1", "run_4", [answer("a4")], NOW)
    assert ids((await begin(conversations, "run_5", user("u5", text="u2"))).path)[-1] == "u5"


async def test_a_rewind_of_all_turns_leaves_an_empty_conversation(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    for number in (1, 2):
        await told(conversations, number)
    back = await conversations.rewind(*MINE, "conv_1", 9, NOW)
    assert isinstance(back, Owned) and (back.head, back.last) == (None, None)
    assert await conversations.path(*MINE, "conv_1") == ()
    assert ids((await begin(conversations, "run_3", user("u3"))).path) == ["u3"]


async def test_nothing_is_rewound_or_deleted_while_a_turn_runs(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await begin(conversations, "run_1", user("u1"))
    assert await conversations.rewind(*MINE, "conv_1", 1, NOW) == "busy"
    assert await conversations.delete(*MINE, "conv_1", NOW) == "busy"
    assert ids(await conversations.path(*MINE, "conv_1")) == ["u1"]
    assert isinstance(await conversations.rewind(*MINE, "conv_1", 1, NOW + 30), Owned)
    assert await conversations.delete(*MINE, "conv_1", NOW) is True


async def test_a_deleted_conversation_is_gone_with_its_items(conversations: Conversations) -> None:
    await conversations.create(*MINE, owned())
    await conversations.create(*MINE, owned("conv_2"), [user("x1")])
    await told(conversations, 1)
    assert await conversations.delete(*MINE, "conv_1", NOW) is True
    assert await conversations.delete(*MINE, "conv_1", NOW) is False
    assert await conversations.find(*MINE, "conv_1", NOW) is None
    assert await begin(conversations, "run_2", user("u2")) is None
    assert ids(await conversations.path(*MINE, "conv_2")) == ["x1"]
    await conversations.create(*MINE, owned())
    assert await conversations.path(*MINE, "conv_1") == ()
