"""`/compact` is a command where the user gives one, prose everywhere else, and nothing at all once it was answered."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain, command, language
from proxy.core.command import Command, Reason, Result
from proxy.core.conversation import Approval, Clarification, Message
from proxy.core.notes import Compaction, Notes
from tests.core.histories import PICTURE, call, loop, model, result, system, user

TALK = (system("law"), user("Build the weir, please."), model("It stands."))
DONE = "Conversation compacted: turns 1-34, 118,200 -> 21,900 tokens."
NOTHING = "Not compacted: there is nothing to compact yet."


def made(turns: int, *, part: bool = False) -> Compaction:
    notes = Notes(turns=turns, part=part)
    return Compaction(
        id="cmp_x", digest=b"d", messages=9, covers=9, notes=notes, before=118_200, after=21_900, trigger="MANUAL"
    )


# -- recognising -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("/compact", ""),
        ("  /compact \n", ""),
        ("/compact keep the paths", "keep the paths"),
        ("/compact \t keep: `a.py`, 日本語  ", "keep: `a.py`, 日本語"),
        ("/compact\n\n<environment_details>\n# Mode\n</environment_details>", ""),
        ("<system-reminder>date</system-reminder>\n/compact keep it", "keep it"),
        ("<task>\n/compact\n</task>", ""),
        ("<user_query>/compact all</user_query>", "all"),
        ("/compact\n\nTo suggest changes to a file you MUST return it whole.\n```\nx\n```", ""),
    ],
)
def test_a_command_is_the_first_line_with_nothing_else_but_what_clients_add(text: str, wish: str) -> None:
    assert command.given((*TALK, user(text))) == Command(at=3, wish=wish)
    assert command.given((*TALK, user(text), system("a note of the client's"))) == Command(at=3, wish=wish)


@pytest.mark.parametrize(
    "text",
    [
        "/compact keep this\nand build the weir",
        "please /compact",
        "/compacted",
        "/compact-now",
        "/Compact",
        "compact",
        "What does /compact do?",
        "`/compact`",
        "/compact\n\nthen go on",
        "# /compact",
        "/ compact",
        "",
    ],
)
def test_the_same_words_elsewhere_are_prose(text: str) -> None:
    assert command.given((*TALK, user(text))) is None


def test_what_is_too_long_to_be_read_whole_is_no_command() -> None:
    assert command.given((*TALK, user("/compact" + "\n" * 300_000 + "and something else"))) is None


def test_only_the_newest_message_of_a_user_gives_a_command() -> None:
    assert command.given((*TALK, user("/compact"), model("ok"))) is None
    assert command.given((*TALK, model("/compact"))) is None
    assert command.given((*TALK[:2], model("", call("a")), result("a", "/compact"))) is None
    assert command.given((system("/compact"),)) is None
    assert command.given(()) is None


# -- refusing --------------------------------------------------------------------------------------------------------


def refusal(*messages: Message, unchanged: bool = False) -> Reason | None:
    given_ = command.given(messages)
    assert given_ is not None
    return command.refusal(messages, given_, unchanged=unchanged)


def test_what_was_talked_about_can_be_compacted() -> None:
    assert refusal(*TALK, user("/compact")) is None
    assert refusal(*loop(3), user("/compact")) is None


def test_attachments_refuse_it() -> None:
    assert refusal(*TALK, user("/compact", PICTURE)) is Reason.ATTACHMENTS
    assert refusal(*TALK, user('/compact\n<file_content path="a">x</file_content>')) is Reason.ATTACHMENTS


def test_a_turn_that_is_not_over_refuses_it() -> None:
    open_loop = (*TALK, user("go"), model("", call("a")))
    assert refusal(*open_loop, user("/compact")) is Reason.RUNNING
    assert refusal(*open_loop, result("a", "x"), system("note"), user("/compact")) is Reason.RUNNING
    asks = chain.message("assistant", (Clarification(id="q", question="which?"),))
    assert refusal(*TALK, user("go"), asks, user("/compact")) is Reason.RUNNING
    wants = chain.message("assistant", (Approval(id="q", action="push", reason="x"),))
    assert refusal(*TALK, user("go"), wants, user("/compact")) is Reason.RUNNING


def test_a_conversation_that_has_not_begun_refuses_it() -> None:
    assert refusal(user("/compact")) is Reason.NOTHING_YET
    assert refusal(system("law"), user("hello"), user("/compact")) is Reason.NOTHING_YET
    assert refusal(user("/compact"), model(NOTHING), user("/compact")) is Reason.NOTHING_YET


def test_nothing_new_since_the_last_one_refuses_it() -> None:
    once = (*TALK, user("/compact"), model(DONE))
    assert refusal(*once, user("/compact")) is Reason.NOTHING_NEW
    again = (
        *once,
        user("/compact keep a"),
        model("Not compacted: already compacted, and nothing new was written since."),
    )
    assert refusal(*again, system("x"), user("/compact")) is Reason.NOTHING_NEW
    assert refusal(*again, user("and now?"), model("done"), user("/compact")) is None
    assert (
        refusal(*TALK, user("/compact"), model("Not compacted: the summary failed: it was empty."), user("/compact"))
        is None
    )
    assert refusal(*TALK, user("/compact"), unchanged=True) is Reason.NOTHING_NEW


# -- answering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "part", "line"),
    [
        (34, False, DONE),
        (1, False, "Conversation compacted: turn 1, 118,200 -> 21,900 tokens."),
        (
            34,
            True,
            "Conversation compacted: turns 1-34 and the first part of turn 35, 118,200 -> 21,900 tokens.",
        ),
        (0, True, "Conversation compacted: the first part of turn 1, 118,200 -> 21,900 tokens."),
        (0, False, "Conversation compacted: long messages, 118,200 -> 21,900 tokens."),
    ],
)
def test_a_success_is_one_fixed_line_with_its_data(turns: int, part: bool, line: str) -> None:
    told = command.compacted(made(turns, part=part), "## Facts\nThe weir stands.")
    assert told.line == line
    assert msgspec.to_builtins(told) == {
        "status": "compacted",
        "line": line,
        "turns": turns,
        "part": part,
        "tokens_before": 118_200,
        "tokens_after": 21_900,
        "compaction_id": "cmp_x",
        "trigger": "MANUAL",
        "writer": "builtin",
        "summary_display": "## Facts\nThe weir stands.",
    }


@pytest.mark.parametrize(
    ("reason", "why", "line"),
    [
        (Reason.NOTHING_YET, "", NOTHING),
        (Reason.NOTHING_NEW, "", "Not compacted: already compacted, and nothing new was written since."),
        (Reason.RUNNING, "", "Not compacted: the latest turn is running or paused."),
        (Reason.ATTACHMENTS, "", "Not compacted: the message has attachments."),
        (Reason.FAILED, "the answer was\ncut off.", "Not compacted: the summary failed: the answer was cut off."),
        (Reason.FAILED, "", "Not compacted: the summary failed: no notes could be made."),
    ],
)
def test_a_refusal_says_its_reason_and_never_success(reason: Reason, why: str, line: str) -> None:
    told = command.refused(reason, why)
    assert (told.line, told.status, told.reason) == (line, "not_compacted", reason)
    assert (told.why == "") is (reason is not Reason.FAILED)
    assert told.compaction_id is told.tokens_after is None


RESULTS = st.one_of(
    st.builds(lambda turns, part: command.compacted(made(turns, part=part)), st.integers(0, 3000), st.booleans()),
    st.builds(command.refused, st.sampled_from(Reason), st.text(max_size=300)),
)


@given(RESULTS)
def test_every_line_of_ours_is_recognised_when_it_comes_back(told: Result) -> None:
    history = (*TALK, user("/compact keep a"), model(f" {told.line}\n"), user("go on"))
    assert command.pairs(history) == {3, 4}


# -- a pair that came back -------------------------------------------------------------------------------------------


def test_a_pair_is_told_as_nothing_wherever_it_stands() -> None:
    history = (
        user("/compact"),
        model(NOTHING),
        *TALK,
        user("/compact\n<system-reminder>x</system-reminder>"),
        system("a note"),
        model(DONE),
        user("Go on with the weir."),
    )
    assert command.pairs(history) == {0, 1, 5, 7}
    assert language.sample(history, command.pairs(history)) == ("Build the weir, please.", "Go on with the weir.")


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("/compact", "Sure, I compact it."),
        ("Please compact.", DONE),
        ("/compact", DONE + " What next?"),
        ("/compact", "Conversation compacted: turns 1-x, 1 -> 2 tokens."),
        ("/compact", "Not compacted: I did not feel like it."),
        ("/compact and do this\nthen that", DONE),
        ("What does it say? " + DONE, "/compact"),
    ],
)
def test_one_half_of_a_pair_is_prose(asked: str, answered: str) -> None:
    assert command.pairs((*TALK, user(asked), model(answered))) == frozenset()


def test_a_line_of_ours_without_a_question_before_it_is_prose() -> None:
    assert command.pairs((model(DONE),)) == frozenset()
    assert command.pairs((system("x"), model(DONE))) == frozenset()
    assert command.pairs((*TALK, model(DONE))) == frozenset()
    assert command.pairs((user("/compact"), model(DONE, call("a")), result("a", "x"))) == frozenset()
    assert command.pairs((user("/compact"), model("", call("a")), result("a", "x"), model(DONE))) == frozenset()
