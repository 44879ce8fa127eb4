"""What a conversation's tree decides, without a database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from proxy.store import branches
from proxy.store.owned import Item
from tests.store.owning import answer, ids, item, turns, user

roles = some.sampled_from(["user", "assistant", "tool", "system", "developer"])


@given(some.lists(roles, max_size=12), some.lists(roles, max_size=12))
def test_turns_counted_in_two_steps_are_those_counted_in_one(first: list[str], second: list[str]) -> None:
    while first and first[-1] in ("system", "developer"):
        second.insert(0, first.pop())  # what the system says comes with the message behind it
    items = [item(f"i{place}", role) for place, role in enumerate((*first, *second))]
    whole = branches.placed(None, branches.numbered(None, items))
    begun = branches.placed(None, branches.numbered(None, items[: len(first)]))
    last = begun[-1] if begun else None
    assert turns(begun + branches.placed(last, branches.numbered(last, items[len(first) :]))) == turns(whole)
    assert turns(whole) == sorted(turns(whole))
    spoken = [role for role in (*first, *second) if role not in ("system", "developer")]
    starts = sum(role == "user" and before != "user" for before, role in zip(["", *spoken], spoken, strict=False))
    greeted = bool(spoken) and spoken[0] != "user"
    assert not whole or whole[-1].turn == max(starts + greeted, 1)


def test_a_user_message_begins_a_turn_and_the_next_ones_join_it() -> None:
    items = [item("u1"), item("u2"), item("a1", "assistant"), item("u3"), item("c", "assistant"), item("r", "tool")]
    assert turns(branches.numbered(None, items)) == [1, 1, 1, 2, 2, 2]


def test_what_the_system_says_belongs_to_the_turn_behind_it() -> None:
    items = [item("s", "system"), item("u"), item("a", "assistant"), item("s2", "developer"), item("u2")]
    assert turns(branches.numbered(None, items)) == [1, 1, 1, 2, 2]
    assert turns(branches.numbered(answer("a"), [item("s", "system")])) == [0]


def test_an_answer_to_a_question_goes_on_with_its_turn() -> None:
    asked = answer("a", paused=True)
    assert turns(branches.numbered(asked, [item("u1"), item("u2"), item("a", "assistant"), item("u3")])) == [0, 0, 0, 1]
    assert turns(branches.numbered(answer("a"), [item("u1")])) == [1]
    assert turns(branches.numbered(user("u0"), [item("u1")])) == [0]


def test_turns_are_placed_behind_the_head_and_begin_with_one() -> None:
    assert turns(branches.placed(None, [item("u", turn=0), item("v", turn=1)])) == [1, 1]
    assert turns(branches.placed(user("h", turn=4), [item("u", turn=0), item("v", turn=1), item("w", turn=2)])) == [
        4,
        5,
        6,
    ]


def test_a_path_is_walked_from_its_head() -> None:
    items: dict[str, tuple[str | None, Item]] = {
        name: (above, item(name)) for name, above in (("c", "b"), ("a", None), ("x", "a"), ("b", "a"))
    }
    assert ids(branches.path(items, "c")) == ["a", "b", "c"]
    assert ids(branches.path(items, "x")) == ["a", "x"]
    assert branches.path(items, None) == ()


def test_what_stands_behind_the_last_answer_is_unanswered() -> None:
    told = (user("u1"), answer("a1"), user("u2"), item("s", "system"))
    assert branches.unanswered(told) == 2
    assert branches.unanswered(told[:2]) == 0
    assert branches.unanswered(told[:1]) == 1


def test_a_rewind_counts_turns_and_not_messages() -> None:
    told = (user("u1", 1), item("a1", "assistant", 1), user("u2", 2), user("u3", 2), user("u4", 3))
    last = branches.before(told, 1)
    assert last is not None and last.id == "u3"
    last = branches.before(told, 2)
    assert last is not None and last.id == "a1"
    assert branches.before(told, 3) is None
    assert branches.before((), 1) is None
