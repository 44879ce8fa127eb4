from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Message
from proxy.core.policy import Policy
from proxy.core.tail import History, Tail, choose, clip
from tests.core.histories import PICTURE, call, conversations, history, lines, loop, model, result, system, user

POLICY = Policy()


def chosen(known: History, spare: int, fit: int, most: int | None = None) -> Tail | None:
    return choose(known, POLICY, spare, fit, most or fit)


def told_tokens(known: History, tail: Tail) -> int:
    """The tail as it will be told, measured anew."""
    limits = dict(tail.clips)
    told = [*known.parted(tail.start), *range(tail.start, len(known.messages))]
    return sum(clip(known.messages[i], limits.get(known.chain.counted[i])).tokens for i in told)


@given(conversations(), st.integers(0, 4_000), st.integers(1, 6_000))
def test_a_tail_begins_at_a_group_holds_the_newest_request_and_fits(
    said: tuple[Message, ...], spare: int, fit: int
) -> None:
    known = history(said)
    tail = chosen(known, min(spare, fit), fit)
    if tail is None:
        return
    firsts = {group.first for group in known.groups}
    assert tail.start in firsts or said[tail.start].role == "system"
    kept = [*known.parted(tail.start), *range(tail.start, len(said))]
    newest = max(index for index, item in enumerate(said) if item.role == "user")
    assert newest in kept
    assert known.groups[-1].first >= tail.start
    assert tail.tokens <= fit
    if not tail.standing:
        assert told_tokens(known, tail) <= tail.tokens + len(tail.clips) + 1
    assert tail.start > known.lead or tail.clips


@given(conversations())
def test_without_room_there_is_no_tail(said: tuple[Message, ...]) -> None:
    assert chosen(history(said), 0, 1) is None


def test_a_history_of_system_messages_alone_has_no_tail() -> None:
    assert chosen(history((system("be good"),)), 1_000, 1_000) is None


def test_nothing_to_cover_and_nothing_to_clip_is_no_tail() -> None:
    assert chosen(history((system("be good"), user("hi"))), 1_000, 1_000) is None


def test_four_messages_stay_and_more_while_they_fit_half_of_the_share() -> None:
    known = history(loop(10, size=5))
    turn = known.size(0, 3)
    small = chosen(known, 2 * turn + turn // 2, 10 * turn)
    assert small is not None
    assert len(known.messages) - small.start == 4
    assert not small.clips
    large = chosen(known, 16 * turn, 18 * turn)
    assert large is not None
    assert 12 <= 40 - large.start < 16
    assert large.clips == ()


def test_results_of_the_newest_group_are_clipped_before_the_words_of_the_user() -> None:
    said = (
        *loop(2),
        user("Compare both."),
        model("", call("a"), call("b")),
        result("a", lines(400)),
        result("b", "ok"),
    )
    known = history(said)
    tail = chosen(known, 800, 2_000)
    assert tail is not None
    assert [counted for counted, _ in tail.clips] == [11]
    assert tail.tokens <= 2_000 - 150


def test_results_of_an_older_group_are_clipped_before_what_the_user_answered_in_it() -> None:
    answer = msgspec.structs.replace(result("b", lines(40)), answer=True)
    asked = (model("", call("a"), call("b")), result("a", lines(60)), answer)
    tail = chosen(history((user("Compare both."), *asked, model("Done."), user("Go on."))), 1_500, 6_000)
    assert tail is not None
    assert tail.start == 1
    assert [counted for counted, _ in tail.clips] == [3]


def test_the_newest_request_is_clipped_last_and_only_as_far_as_it_must() -> None:
    said = (*loop(2), user(lines(600)))
    known = history(said)
    tail = choose(known, POLICY, 800, 1_000, 3_000)
    assert tail is not None
    ((counted, limit),) = tail.clips
    assert counted == 9
    assert 2_000 < tail.tokens <= 3_000 - 150
    assert limit < len(said[-1].text)


def test_neighbouring_messages_that_open_the_newest_turn_are_one_request() -> None:
    said = (*loop(4), user("First this. " * 30), user("Then that. " * 30))
    known = history(said)
    tail = chosen(known, 10, 2_000)
    assert tail is not None
    assert tail.start == 16
    assert known.parted(tail.start) == ()


def test_a_giant_request_alone_is_clipped() -> None:
    known = history((system("be good"), user(lines(2_000))))
    tail = chosen(known, 900, 2_000)
    assert tail is not None
    assert tail.start == 1
    assert len(tail.clips) == 1


def test_a_clip_that_saves_less_than_it_seems_is_corrected() -> None:
    text = "7 8 9 - + = 3 " * 300 + "word " * 8_000 + "7 8 9 - + = 3 " * 300
    known = history((*loop(1), user(text)))
    tail = chosen(known, 500, 1_200)
    assert tail is not None
    assert told_tokens(known, tail) <= 1_200


def test_what_cannot_be_clipped_enough_is_no_tail() -> None:
    said = (*loop(2), user("go"), model("", call("a", text=lines(500))), result("a", lines(300)))
    assert chosen(history(said), 500, 1_000) is None


def test_an_older_group_is_clipped_only_until_there_are_four_messages() -> None:
    said = (model("a " * 900), model(lines(300)), user("b " * 99), model(lines(300)), user("c"))
    tail = chosen(history(said), 900, 4_000)
    assert tail is not None
    assert tail.start == 1
    assert [counted for counted, _ in tail.clips] == [2, 4]
    assert tail.tokens <= 0.45 * 900


def test_a_group_whose_calls_are_too_long_is_left_to_the_notes() -> None:
    said = (user("a"), model("", call("x", text=lines(300))), result("x", "ok"), user("c"))
    tail = chosen(history(said), 1_000, 6_000)
    assert tail is not None
    assert tail.start == 3


def test_the_open_request_of_a_long_turn_is_counted_in_front_of_the_tail() -> None:
    said = [user("first"), user("Do it all. " + "Carefully. " * 20)]
    for step in range(40):
        said += [model("", call(f"c{step}")), result(f"c{step}", lines(10))]
    known = history(tuple(said))
    tail = chosen(known, 900, 4_000)
    assert tail is not None
    assert known.parted(tail.start) == (0, 1)
    assert tail.tokens == known.size(0, 1) + known.size(tail.start, len(said) - 1)


def test_system_messages_inside_the_covered_part_stay_newest_first_and_once() -> None:
    said = (system("lead"), user("a"), system("old"), model("b"), system("new"), user("c"), system("new"), *loop(3))
    known = history(said)
    tail = chosen(known, 300, 2_000)
    assert tail is not None
    assert tail.start > 6
    assert tail.standing == 2
    narrow = choose(known, POLICY, 300, 8 * known.sizes[6], 2_000)
    assert narrow is None or narrow.standing <= 1


def test_a_system_message_in_front_of_the_tail_belongs_to_it() -> None:
    said = (*loop(3), system("hurry"), user("go"))
    known = history(said)
    tail = chosen(known, 40, 2_000)
    assert tail is not None
    assert tail.start == 12
    assert tail.standing == 0
    assert tail.tokens == known.size(12, 13)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_sizes_are_the_providers(scale: float) -> None:
    known = history(loop(3), scale)
    assert known.size(0, 11) == sum(known.sizes)
    assert known.scaled(100) == round(100 * scale)


def test_a_clip_leaves_media_calls_and_arguments_alone() -> None:
    said = clip(result("a", "x" * 900, PICTURE), 200)
    assert said.results[0].media == (PICTURE,)
    assert len(said.text) < 300
    asked = clip(user("y" * 900, PICTURE), 200)
    assert asked.blocks[0].media == (PICTURE,)  # type: ignore[union-attr]
    long = model("z" * 900, call("a", text="w" * 900))
    assert clip(long, 200).calls == long.calls
    assert clip(long, None) is long
