"""What a user answers to a question is his, wherever a history is read: it stands as a tool's result, and is none.

A turn goes on with it, notes pin it, memory never cuts it, summaries and the ledger know who said it.
"""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core import chain, language
from proxy.core.agent import MemoryLimits
from proxy.core.compaction import ending_at, notes_message, plan, remaining
from proxy.core.completing import completed
from proxy.core.conversation import Message, ToolCall, Turn
from proxy.core.groups import groups, newest, opened, opening, turns
from proxy.core.ledger import RESULT, USER, Ledger, sightings
from proxy.core.memory import closed_turns
from proxy.core.policy import Policy
from proxy.core.quoting import quote, written
from proxy.core.tail import History, choose
from proxy.core.turned import turned
from tests.core.histories import call, flaws, history, lines, model, result, room, system, user
from tests.playbook import changed

ASK = call("q1", "ask_user", question="Which street?", options=["Mill Lane", "High Street"])


def answer(text: str, id: str = "q1") -> Message:
    return changed(result(id, text), answer=True)


OLD = (user("Find Ann."), model("", ASK), answer("Mill Lane, near src/mill.py"), model("Found."))
TALK = (*OLD, user("Write to her."), model("", ASK), answer("High Street"), user("And be quick."), model("Done."))


def test_the_user_speaks_in_his_messages_and_in_his_answers() -> None:
    assert [item.by_user for item in TALK] == [True, False, True, False, True, False, True, True, False]
    assert not result("q1", "x").by_user


# -- groups and turns -------------------------------------------------------------------------------------------------


def test_a_turn_goes_on_with_an_answer_and_with_what_stands_beside_it() -> None:
    assert turns(TALK) == (Turn(first=0, last=3), Turn(first=4, last=8))
    assert [opening(TALK, turn) for turn in turns(TALK)] == [(0,), (4,)]
    assert closed_turns(TALK, range(len(TALK))) == [(0, 1, 2, 3)]


def test_a_question_is_in_one_group_with_the_answer_and_what_stands_beside_it() -> None:
    assert [(each.first, each.last) for each in groups(TALK)] == [(0, 0), (1, 2), (3, 3), (4, 4), (5, 7), (8, 8)]


@pytest.mark.parametrize(("end", "first"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 4)])
def test_the_newest_turn_is_the_one_that_asked(end: int, first: int) -> None:
    assert opened(TALK[:end]) == first
    assert newest(TALK[:end]) == (first,)


# -- notes ------------------------------------------------------------------------------------------------------------


def test_notes_pin_an_answer_with_what_was_asked() -> None:
    talk = (*TALK, user("Thanks."), model("Gladly."))
    made = ending_at(9, 100, history(talk), room(8_000), Policy(), 400, None)
    assert [(pin.turn, pin.text) for pin in made.notes.pins] == [
        (1, "Find Ann."),
        (1, "(asked: Which street? Mill Lane High Street)\nMill Lane, near src/mill.py"),
        (2, "Write to her."),
        (2, "(asked: Which street? Mill Lane High Street)\nHigh Street"),
        (2, "And be quick."),
    ]


def test_an_answer_in_the_covered_part_of_the_open_turn_is_pinned_and_its_opening_stays() -> None:
    talk = [user("Find Ann, never Bob."), model("", ASK), answer("Mill Lane"), user("Now.")]
    for number in range(20):
        talk += [model("", call(f"c{number}", path=f"p{number}.py")), result(f"c{number}", lines(20))]
    known = history(tuple(talk))
    made = plan(known, room(4_000), Policy(), 10_000)
    assert made is not None
    assert made.notes.part
    texts = [pin.text for pin in made.notes.pins]
    assert texts == ["(asked: Which street? Mill Lane High Street)\nMill Lane", "Now."]
    assert remaining(known.messages, known.chain, made)[0] == 0
    assert "Mill Lane" in notes_message(made).text


def test_the_newest_group_is_the_question_whatever_stands_beside_its_answer() -> None:
    talk = (*[item for turn in range(12) for item in (user(lines(20)), model("Well."))], *TALK[4:8])
    tail = choose(history(talk), Policy(), 900, 1_200, 1_200)
    assert tail is not None
    assert tail.start <= len(talk) - 3


def test_a_system_message_behind_the_answer_does_not_stand_for_it() -> None:
    """The newest group is more than a system message: it stays, with the question."""
    talk = (*[item for turn in range(12) for item in (user(lines(20)), model("Well."))], *TALK[4:7], system("Noon."))
    known = history(talk)
    tail = choose(known, Policy(tail_messages=1, tail_max_share=0.01), 900, 1_200, 1_200)
    assert tail is not None
    assert tail.start == len(talk) - 3
    assert known.newest == len(talk) - 3
    assert history((system("a"), system("b"))).groups == ()


def test_an_answer_is_cut_like_a_request_and_not_like_a_result() -> None:
    """Where room is short results go first: the user's own words only when nothing else is left."""
    talk = (user("Go."), model("", ASK, call("c1")), result("c1", lines(100)), answer(lines(110)))
    known: History = history(talk)
    tail = choose(known, Policy(), 2_000, 2_000, 2_000)
    assert tail is not None
    assert [counted for counted, _ in tail.clips] == [known.chain.counted[2]]


def test_rules_and_pages_know_that_the_user_said_it() -> None:
    talk = (
        user("Go."),
        model("", ASK),
        answer("You must never push to main."),
        model("Well."),
        user("On."),
        model("."),
    )
    known = history(talk)
    made = ending_at(4, 100, known, room(8_000), Policy(), 400, None)
    bare = changed(made, notes=changed(made.notes, pins=()))
    done, texts = completed(
        bare, talk, known.chain, room(8_000), fixed=0, scale=1.0, before=None,
        refer=lambda text: chain.reference(b"s" * 32, text), redact=str,
    )  # fmt: skip
    assert "You must never push to main." in [rule.text for rule in done.notes.rules]
    assert "[turn 1, the user] You must never push to main." in "\n".join(stored.text for stored in texts)


# -- what is said of it -----------------------------------------------------------------------------------------------


def test_a_summary_model_reads_who_said_it_and_in_which_turn() -> None:
    entries = [entry for part in quote(TALK, 0, len(TALK)) for entry in part]
    assert [(entry.turn, entry.head) for entry in entries] == [
        (1, "the user"), (1, "the model calls ask_user"), (1, "the user"), (1, "the model"),
        (2, "the user"), (2, "the model calls ask_user"), (2, "the user"), (2, "the user"), (2, "the model"),
    ]  # fmt: skip
    assert "untrusted" not in written(tuple(entries), "*")


def test_an_answer_is_a_passage_of_the_users() -> None:
    talk = (user("Go."), model("", ASK), answer("Bitte die zweite von den beiden, und zwar bald."))
    assert language.sample(talk) == ("Bitte die zweite von den beiden, und zwar bald.",)


def test_identifiers_in_an_answer_were_said_by_the_user_and_errors_in_it_are_none() -> None:
    text = "Error: see src/mill.py"
    assert {(kind, by) for kind, _, by, _ in sightings(answer(text))} == {("path", USER)}
    assert {by for _, _, by, _ in sightings(result("q1", text))} == {RESULT}
    listed = Ledger()
    listed.add(model("", ASK), 1)
    listed.add(answer(text), 1)
    assert [entry.text for entry in listed.best(200, frozenset())[0]] == ["src/mill.py"]


# -- memory -----------------------------------------------------------------------------------------------------------


def told(turn: tuple[Message, ...], age: Any = "older", **limits: Any) -> list[Message]:
    places = turned(turn, range(len(turn)), {}, age, MemoryLimits(**limits), None).places
    found = [each for index, item in enumerate(turn) for each in places.get(index, (item,))]
    assert flaws(tuple(found)) == []
    return found


def test_memory_tells_answers_whole_however_old_and_long_they_are() -> None:
    long = answer("street " * 300)
    asks = ToolCall(id="q1", name="ask_user", arguments='{"question": "' + "w" * 900 + '"}')
    turn = (user("Go."), model("Hm.", asks), long, model("See.", call("c1")), result("c1", "x" * 900), model("Done."))
    for age in ("recent", "older"):
        said = told(turn, age)
        assert said[2] is long
        assert (said[1].text, len(said[1].calls[0].arguments) < 500) == ("", True)
        assert len(said[4].text) <= 400


def test_answers_are_told_before_all_other_calls_and_beyond_their_number() -> None:
    turn = [user("Go.")]
    for number in range(6):
        turn += [model("", call(f"q{number}", "ask_user")), answer(f"Answer {number}", f"q{number}")]
        turn += [model("", call(f"c{number}")), result(f"c{number}", "exit code 1")]
    said = told((*turn, model("Done.")), calls=4)
    assert [item.text for item in said if item.answer] == [f"Answer {number}" for number in range(6)]
    assert [item.text for item in said if item.results and not item.answer] == []
    fewer = told((*turn, model("Done.")), calls=8)
    assert sum(bool(item.results) and not item.answer for item in fewer) == 2


def test_what_stands_beside_an_answer_stays_in_its_turn() -> None:
    said = told(TALK[4:])
    assert [(item.role, item.text) for item in said] == [
        ("user", "Write to her."), ("assistant", ""), ("tool", "High Street"), ("user", "And be quick."),
        ("assistant", "Done."),
    ]  # fmt: skip
