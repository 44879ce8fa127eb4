"""A history whose pauses are taken up: calls with their results, one turn, and the identities that it had before."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import Approval, Clarification, Message, Text, Turn
from proxy.core.groups import groups, newest, opened, turns
from proxy.core.hidden import Behind, Paused, Placed, kept, placed
from proxy.core.pauses import LAPSED, TakenUp, asked, attached, just_answered, shown, taken_up, unmarked
from proxy.core.recognition import recognise
from proxy.core.replayed import ended
from proxy.core.steps import Hidden
from tests.core.histories import PICTURE, START, call, flaws, model, result, system, user
from tests.core.stacks import behind

ASK = call("q1", "ask_user", question="Which one?", options=["a", "b"])
SHOWN = model("Hm.\n\nWhich one?\n\n1. a\n2. b")
ASKS = Behind(reply=kept(model("Hm.", ASK)), shown=SHOWN.digest, pause=Paused(id="q1", at=1000.0))
OPEN = (user("Begin."), SHOWN)


def taken(messages: tuple[Message, ...], *states: tuple[int, Behind], now: float = 1001.0, **more: Any) -> TakenUp:
    past = recognise(START, messages)
    found = placed(past, behind(messages, *states).hidden, newest(messages))
    return taken_up(past, found, now, more.pop("expires", 60.0), **more)


def said(*messages: Message) -> list[tuple[str, str, tuple[str, ...]]]:
    """Role, words, and the ids of calls or of what is answered."""
    return [
        (item.role, item.text, tuple(call.id for call in item.calls) + tuple(each.call_id for each in item.results))
        for item in messages
    ]


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_a_question_is_shown_with_its_options_numbered() -> None:
    assert shown(Clarification(id="q", question="Which?", options=("red", "blue"))) == "Which?\n\n1. red\n2. blue"
    assert shown(Clarification(id="q", question="Which?")) == "Which?"


def test_an_approval_is_shown_with_its_reason_and_how_to_answer() -> None:
    how = "Reply yes to allow it; or say no, or what to do instead."
    assert (
        shown(Approval(id="q", action="Send it", reason="Late")) == f"Approval needed: Send it\nReason: Late\n\n{how}"
    )
    assert shown(Approval(id="q", action="Send it", reason="")) == f"Approval needed: Send it\n\n{how}"


# -- an answer --------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_result_of_the_call_and_everything_keeps_its_identity() -> None:
    messages = (*OPEN, user("a"), model("Done."))
    made = taken(messages, (0, ASKS))
    assert said(*made.past.messages) == [
        ("user", "Begin.", ()),
        ("assistant", "Hm.", ("q1",)),
        ("tool", "a", ("q1",)),
        ("assistant", "Done.", ()),
    ]
    before = recognise(START, messages)
    assert made.past.chain == before.chain
    assert made.past.places == before.places
    assert [item.digest for item in made.past.messages] == [item.digest for item in messages]
    assert made.past.tokens == sum(item.tokens for item in made.past.messages)
    assert turns(made.past.messages) == (Turn(first=0, last=3),)
    assert [(each.first, each.last) for each in groups(made.past.messages)] == [(0, 0), (1, 2), (3, 3)]
    (each,) = made.behind
    assert (each.opened, each.answer) == (True, messages[2])
    assert not made.open


def test_a_history_without_pauses_is_the_same_object() -> None:
    messages = (*OPEN, user("a"))
    past = recognise(START, messages)
    found = placed(past, behind(messages, (0, msgspec.structs.replace(ASKS, pause=None))).hidden, newest(messages))
    assert taken_up(past, found, 0.0, 1.0).past is past


def test_one_answer_follows_another_in_the_same_turn() -> None:
    again = model("Which two?")
    more = Behind(reply=kept(model("", call("q2", "ask_user"))), shown=again.digest, pause=Paused(id="q2", at=1000.0))
    messages = (*OPEN, user("a"), again, user("/b"), model("Done."), user("Next."))
    made = taken(messages, (0, ASKS), (2, more))
    assert [item.role for item in made.past.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert turns(made.past.messages) == (Turn(first=0, last=5), Turn(first=6, last=6))
    assert made.past.messages[4].slugs == ()
    assert [each.opened for each in made.behind] == [False, False]
    assert flaws(made.past.messages) == []


def test_system_messages_between_come_behind_and_what_else_the_user_said_stays_his() -> None:
    messages = (*OPEN, system("Noon."), user("a"), system("One."), user("/slug and b"), model("Done."))
    assert messages[5].slugs == ("slug",)
    made = taken(messages, (0, ASKS))
    assert said(*made.past.messages[1:]) == [
        ("assistant", "Hm.", ("q1",)),
        ("tool", "a", ("q1",)),
        ("system", "Noon.", ()),
        ("system", "One.", ()),
        ("user", "/slug and b", ()),
        ("assistant", "Done.", ()),
    ]
    assert made.past.messages[5].slugs == ()
    assert turns(made.past.messages) == (Turn(first=0, last=6),)
    counted, after = made.past.chain.counted, made.past.chain.after
    assert counted == (1, 2, 3, 3, 3, 4, 5)
    assert after[2] == after[3] == recognise(START, messages).chain.after[3]
    for place in range(1, 6):  # every boundary is found again
        assert made.past.chain.holds(after[made.past.chain.behind(place) - 1], place)


def test_what_opens_the_newest_turn_is_what_it_opened_with() -> None:
    messages = (user("Old."), model("Well."), *OPEN, user("a"), user("and b"))
    made = taken(messages, (2, ASKS))
    assert opened(made.past.messages) == 2
    assert newest(made.past.messages) == (2,)
    assert just_answered(made.past.messages)
    assert not just_answered(messages)
    assert [(each.first, each.last) for each in groups(made.past.messages)][-1] == (3, 5)


def test_media_and_the_speakers_name_are_told() -> None:
    answer = message("user", (Text(text="This.", media=(PICTURE,)),), name="Ann")
    made = taken((*OPEN, answer), (0, ASKS))
    assert said(made.past.messages[2]) == [("tool", "Ann: This.", ("q1",))]
    assert not made.past.messages[2].media
    (each,) = made.behind
    assert each.answer is not None
    assert attached(each.answer) == message("user", (Text(text="", media=(PICTURE,)),), name="Ann")
    assert attached(user("Words.")) is None


def test_what_was_asked_is_told_in_one_line() -> None:
    made = taken((*OPEN, user("a")), (0, ASKS)).past.messages
    assert asked(made, 2) == "Which one? a b"
    long = call("q1", "ask_user", question="w " * 500)
    assert asked((model("", long), result("q1", "a")), 1).endswith(" ...")
    assert asked((user("x"), result("q9", "a")), 1) == ""


# -- no answer --------------------------------------------------------------------------------------------------------


def test_a_question_at_the_end_is_open() -> None:
    for messages in (OPEN, (*OPEN, system("Noon."))):
        made = taken(messages, (0, ASKS))
        assert made.open
        assert made.past.messages == messages
        assert [each.answer for each in made.behind] == [None]


def test_one_that_the_client_altered_or_another_model_went_on_from_is_as_it_is_shown() -> None:
    for messages in ((user("Begin."), model("Which?"), user("a")), (*OPEN, model("I choose a."), user("Well."))):
        made = taken(messages, (0, ASKS))
        assert made.past.messages == messages
        assert not made.open


def test_what_is_no_answer_leaves_the_question_as_it_is_shown() -> None:
    made = taken((*OPEN, user("Sum it up.")), (0, ASKS), answers=False)
    assert made.past.messages == (*OPEN, user("Sum it up."))
    earlier = taken((*OPEN, user("a"), model("Done."), user("Sum it up.")), (0, ASKS), answers=False)
    assert earlier.past.messages[2].answer


def test_a_question_expires_and_then_is_a_call_that_failed() -> None:
    messages = (*OPEN, user("/slug Good morning."))
    made = taken(messages, (0, ASKS), now=1061.0)
    assert made.past.messages == messages
    (each,) = made.behind
    assert each.state.pause is None
    assert [(item.answers, item.text) for item in each.state.results] == [("q1", LAPSED)]
    assert ended(LAPSED) == "failed"
    assert not each.opened
    assert not taken(OPEN, (0, ASKS), now=1061.0).open
    for now, expires in ((1060.0, 60.0), (10_000_000.0, 0.0)):
        assert taken(messages, (0, ASKS), now=now, expires=expires).past.messages[2].answer


def test_an_answer_that_came_in_time_is_one_for_good() -> None:
    messages = (*OPEN, system("Noon."), user("a"), user("b"), model("Done."), user("Thanks."))
    resumed = Behind(resumed=True)
    for place in (3, 4):  # it was sent alone, or with what follows it
        assert taken(messages, (0, ASKS), (place, resumed), now=1e9).past.messages[2].answer
    assert not taken(messages, (0, ASKS), (6, resumed), now=1e9).past.messages[2].answer


# -- whatever is said -------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(["a", "/slug go", "yes, but", "no"])


@st.composite
def talks(draw: st.DrawFn) -> tuple[tuple[Message, ...], list[tuple[int, Behind]]]:
    """A conversation in which a model asks now and then, with what is remembered of it."""
    messages: list[Message] = [user("Begin.")]
    states: list[tuple[int, Behind]] = []
    for number in range(draw(st.integers(1, 8))):
        here = max(place for place, item in enumerate(messages) if item.role != "system")
        if draw(st.booleans()):
            text = model(f"Which {number}?")
            reply = model(draw(st.sampled_from(["", "Hm."])), call("call_0", "ask_user", question=f"Which {number}?"))
            states.append((here, Behind(reply=kept(reply), shown=text.digest, pause=Paused(id="call_0", at=1000.0))))
            messages.append(text)
        else:
            messages.append(model(f"Said {number}."))
        messages += [system("Noon.")] * draw(st.integers(0, 2))
        messages += [user(f"{draw(_WORDS)} {number}") for _ in range(draw(st.integers(1, 3)))]
    return tuple(messages), states


@given(talks())
def test_every_answered_question_is_a_call_with_its_result(
    talk: tuple[tuple[Message, ...], list[tuple[int, Behind]]],
) -> None:
    messages, states = talk
    made = taken(messages, *states)
    past, before = made.past, recognise(START, messages)
    assert flaws(past.messages) == []
    assert sum(item.answer for item in past.messages) == len(states)
    assert past.chain.last == before.chain.last
    assert list(past.chain.counted) == sorted(past.chain.counted)
    assert set(past.chain.counted) == set(before.chain.counted)
    assert past.places == before.places
    spoken = sorted(item.text for item in past.messages if item.by_user)
    assert spoken == sorted(item.text for item in messages if item.role == "user")
    covered = [place for group in groups(past.messages) for place in range(group.first, group.last + 1)]
    assert covered == [*range(len(messages))]
    for group in groups(past.messages):
        assert not past.messages[group.first].answer


@given(talks(), st.data())
def test_a_longer_history_is_told_as_the_shorter_one_was(
    talk: tuple[tuple[Message, ...], list[tuple[int, Behind]]], data: st.DataObject
) -> None:
    """But for a question that was still open, and system messages that are told behind its answer."""
    messages, states = talk
    ends = [place for place, item in enumerate(messages) if item.role == "user"]
    end = data.draw(st.sampled_from(ends)) + 1
    first = taken(messages[:end], *[each for each in states if each[0] < end - 1]).past.messages
    whole = taken(messages, *states).past.messages
    assert whole[:end] == first


def test_answers_are_told_without_our_own_members_and_keep_their_identity() -> None:
    def plain(item: Message) -> Message:
        return msgspec.structs.replace(item, wire=b"plain") if item.wire == b"marked" else item

    marked = msgspec.structs.replace(SHOWN, wire=b"marked")
    calls = msgspec.structs.replace(model("", ASK), wire=b"marked")
    past = recognise(START, (user("Begin."), marked, user("a"), calls, result("q1", "b")))
    made = unmarked(past, plain)
    assert [item.wire for item in made.messages] == [None, b"plain", None, b"marked", None]
    assert made.chain is past.chain
    same = recognise(START, OPEN)
    assert unmarked(same, plain) is same


def test_states_and_memories_are_of_one_shape() -> None:
    """What the helpers make is what the store gives back."""
    found = behind(OPEN, (0, ASKS)).hidden
    assert all(type(each) is Hidden for each in found)
    (each,) = placed(recognise(START, OPEN), found, (0,))
    assert each == Placed(index=0, reply=1, state=ASKS, opened=True, again=False)
