"""What is told of a history besides what was shown: earlier rounds, skills, and the rounds of this call."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Message
from proxy.core.hidden import Behind, kept
from proxy.core.layers import rounded
from proxy.core.selecting import slug_of
from proxy.core.stack import Trace
from tests.core.histories import call, conversations, model, result, system, user
from tests.core.stacks import (
    REFUND,
    TONE,
    a_stack,
    an_agent,
    behind,
    loads,
    made,
    told,
)

GREP = call("g1", "grep", what="x")
HELLO = (user("Hello"),)
LOADED = (Trace(kind="SKILL_LOAD", id=TONE.id),)
OPEN = (user("/tone Find"), model("", GREP), result("g1", "x"))

# -- what was told besides --------------------------------------------------------------------------------------------

ROUNDS = (model("Let me look.", loads()), result("w1", TONE.text))
SEEN = model("Let me look.\n\nDone.")
STATE = Behind(
    rounds=tuple(map(kept, ROUNDS)), reply=kept(model("Done.")), shown=SEEN.digest, traces=LOADED, catalogue=()
)


def test_the_history_is_told_as_the_model_saw_it_and_weighs_as_much() -> None:
    messages = (user("One"), SEEN, user("Two"))
    layers = made(a_stack(an_agent(instructions="A.")), messages, behind(messages, (0, STATE)))
    prompt = told(layers, messages)
    assert prompt == (layers.leading, user("One"), *ROUNDS, model("Done."), user("Two"))
    assert layers.loaded(0) == layers.loaded(1) == {TONE.id}
    assert layers.loaded(2) == frozenset()
    assert sum(item.tokens for item in messages) + layers.extra == sum(item.tokens for item in prompt)
    assert layers.added(0, messages[0]) == 0
    assert layers.added(1, SEEN) == sum(item.tokens for item in (*ROUNDS, model("Done."))) - SEEN.tokens


def test_hidden_state_of_another_history_is_left_aside() -> None:
    messages = (user("One"), SEEN, user("Two"))
    assert made(a_stack(an_agent()), messages, behind((user("Other"),), (0, STATE))).expansions == {}


def test_notes_name_the_skills_of_the_turns_that_they_cover() -> None:
    messages = (user("/refund One"), SEEN, user("Two"), model("Yes."), user("Three"))
    layers = made(a_stack(an_agent(instructions="A.")), messages, behind(messages, (0, STATE)))
    notes = user("<notes>")
    whole = layers.told((notes, *messages[2:]), (2, 3, 4), 0)
    assert whole[1].text == "<notes>\nSkills used in the turns that these notes cover: refund, tone"
    assert whole[2:] == messages[2:]
    none = layers.told((notes, *messages), (0, 1, 2, 3, 4), 0)
    assert none[1] is notes
    everything = layers.told((notes,), (), 0)
    assert everything[1].text.endswith("refund, tone")


def test_what_is_told_of_the_covered_messages_goes_with_them_but_for_skills_of_the_open_turn() -> None:
    loop = (user("One"), model("See.", GREP), result("g1", "x"), model("", call("g2", "grep")), result("g2", "y"))
    seen = loop[1]
    state = Behind(rounds=tuple(map(kept, ROUNDS)), reply=kept(seen), shown=seen.digest, traces=LOADED)
    layers = made(a_stack(an_agent(instructions="A.")), loop, behind(loop, (0, state)))
    notes = user("<notes>")
    # The turn's request is told, its first group is covered: what was loaded there is told all the same.
    prompt = layers.told((notes, loop[0], *loop[3:]), (0, 3, 4), 0)
    assert prompt == (layers.leading, notes, loop[0], *ROUNDS, *loop[3:])
    assert layers.loaded(0) == {TONE.id}
    assert layers.added(1, seen) == 0  # the rounds do not go with the message
    assert told(layers, loop) == (layers.leading, loop[0], *ROUNDS, *loop[1:])
    # Behind these notes it stays, in later turns too; behind those of the whole turn it goes, and they name it.
    later = (*loop, model("Done."), user("Two"))
    layers = made(a_stack(an_agent(instructions="A.")), later, behind(later, (0, state)))
    kept_ = layers.told((notes, loop[0], *later[3:]), (0, 3, 4, 5, 6), 0)
    assert kept_[: len(prompt)] == prompt
    assert layers.loaded(0) == {TONE.id}
    assert layers.added(1, seen) == sum(item.tokens for item in ROUNDS)
    prompt = layers.told((notes, later[-1]), (6,), 0)
    assert prompt[1].text.endswith("cover: tone")
    assert prompt[2:] == later[-1:]
    assert layers.loaded(6) == frozenset()


def test_several_loads_of_an_open_turn_stay_in_order() -> None:
    second = (model("", loads("w2", "refund")), result("w2", REFUND.text))
    loop = (user("One"), model("", GREP), result("g1", "x"), model("", call("g2", "grep")), result("g2", "y"))
    states = (
        (0, Behind(rounds=tuple(map(kept, ROUNDS)), reply=kept(loop[1]), shown=loop[1].digest, traces=LOADED)),
        (
            2,
            Behind(
                rounds=tuple(map(kept, second)),
                reply=kept(loop[3]),
                shown=loop[3].digest,
                traces=(Trace(kind="SKILL_LOAD", id=REFUND.id),),
            ),
        ),
    )
    later = (*loop, model("", call("g3", "grep")), result("g3", "z"))
    layers = made(a_stack(an_agent(instructions="A.")), later, behind(later, *states))
    prompt = layers.told((user("<notes>"), later[0], *later[5:]), (0, 5, 6), 0)
    assert prompt[2:] == (later[0], *ROUNDS, *second, *later[5:])


def test_a_result_beside_an_altered_reply_counts_as_not_loaded() -> None:
    mixed = Behind(
        reply=kept(model("", loads(), GREP)),
        shown=model("", GREP).digest,
        results=(kept(result("w1", TONE.text)),),
        traces=LOADED,
    )
    messages = (user("One"), model("Changed.", GREP), result("g1", "x"))
    layers = made(a_stack(an_agent()), messages, behind(messages, (0, mixed)))
    assert layers.loaded(0) == frozenset()
    same = (user("One"), model("", GREP), result("g1", "x"))
    assert made(a_stack(an_agent()), same, behind(same, (0, mixed))).loaded(0) == {TONE.id}


def test_system_messages_that_notes_leave_standing_come_behind_the_leading_ones() -> None:
    messages = (system("A"), user("One"), system("Inside."), model("Done."), user("Two"))
    layers = made(a_stack(base="Base."), messages)
    prompt = layers.told((system("A"), system("Inside."), user("<notes>"), user("Two")), (4,), 2)
    assert prompt == (layers.leading, system("Inside."), user("<notes>"), user("Two"))


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_rounds_stand_behind_everything_and_weigh() -> None:
    layers = made(a_stack(an_agent()), HELLO)
    more = rounded(layers, ROUNDS)
    assert told(more, HELLO) == (layers.leading, *HELLO, *ROUNDS)
    assert more.extra == layers.extra + sum(item.tokens for item in ROUNDS)
    assert more.members == layers.members
    last = rounded(more, ROUNDS, offered=False)
    assert last.members == {**layers.members, "tool_choice": b'"none"'}
    assert last.rounds == (*ROUNDS, *ROUNDS)


def test_a_skill_is_named_by_the_end_of_its_id() -> None:
    assert (slug_of("acme/tone"), slug_of("tone")) == ("tone", "tone")


@given(conversations(), st.sampled_from(["system", "message"]), st.sampled_from(["after", "before"]))
def test_layers_leave_the_conversation_as_it_is_and_are_the_same_each_time(
    messages: tuple[Message, ...], place: Any, client_system: Any
) -> None:
    stack = a_stack(an_agent(instructions="A.", place=place, client_system=client_system), base="Base.")
    layers = made(stack, messages)
    prompt = told(layers, messages)
    assert prompt == told(made(stack, messages), messages)
    assert prompt[0] == layers.leading
    assert prompt[1:] == messages[layers.replaced :]
    assert sum(item.tokens for item in prompt) == sum(item.tokens for item in messages) + layers.extra


@given(conversations(), st.data())
def test_a_longer_history_is_told_as_a_longer_prompt(messages: tuple[Message, ...], data: st.DataObject) -> None:
    stack = a_stack(an_agent(instructions="A.", place="message"), base="Base.")
    first = next((index for index, item in enumerate(messages) if item.role not in ("system", "developer")), 0)
    cut = data.draw(st.integers(min(first + 1, len(messages)), len(messages)))
    said = tuple(user(f"/tone {item.text}") if item.role == "user" else item for item in messages)
    shorter = told(made(stack, said[:cut]), said[:cut])
    assert told(made(stack, said), said)[: len(shorter)] == shorter
