"""What is no notes is known by its build; notes that only speak of such things are left alone."""

from __future__ import annotations

import pytest

from proxy.core.headings import parse
from proxy.core.summary import instructions
from proxy.core.symptoms import continues, declines, repeats, tool_syntax
from tests.core.narratives import GOOD


@pytest.mark.parametrize(
    "text",
    [
        "I can't do that.",
        "I cannot summarise this conversation.",
        "**I'm sorry**, but no.",
        "Sorry, no.",
        "As an AI, I do not",
        "Unfortunately, this is not possible.",
        "Je suis désolé, mais",
        "Lo siento, no puedo",
        "Não posso ajudar",
        "К сожалению, нет",
        "很抱歉，",
        "죄송합니다",
    ],
)
def test_a_refusal_begins_with_regret(text: str) -> None:
    assert declines(text)
    assert not declines(text + " and so on" * 100)


@pytest.mark.parametrize("text", ["I cannonade", "Asai", "The user cannot", "", GOOD])
def test_other_beginnings_are_none(text: str) -> None:
    assert not declines(text)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{}",
        "</function_calls>",
        "<|python_tag|>x",
        "<|channel|>commentary to=functions.x",
        "```tool_code\nprint(1)\n```",
        '  {"tool": "bash", "input": {}}',
        '{"function": {"name": "x"}}',
        "[tool_calls]",
    ],
)
def test_calls_in_text_are_seen(text: str) -> None:
    assert tool_syntax(text)


@pytest.mark.parametrize(
    "text", ["`<tool_call>` is parsed", '- config {"name": "x", "size": 3}', "Action: none", "function calls", GOOD]
)
def test_calls_that_are_spoken_of_are_not(text: str) -> None:
    assert not tool_syntax(text)


def test_speakers_inside_code_do_not_speak() -> None:
    assert not continues("## Facts\n```\nUser: a\nAssistant: b\n```\n" + "- a fact that goes on\n" * 5, parse(GOOD))
    assert continues("[abcdefgh turn 3, the user]\nhi\n[abcdefgh turn 3, the model]\nho", parse(""))
    assert continues("### User:\nhi\n### Assistant:\nho", parse(""))
    assert not continues("User: a\nUser: b\nHuman: c", parse(""))
    assert not continues(GOOD, parse(GOOD))


def test_a_repetition_is_most_of_a_text_not_a_quotation_in_it() -> None:
    record = [f"the record goes on and on in line {number}" for number in range(40)]
    copied = "\n".join(f"- {line}" for line in record[:20])
    assert repeats(copied, "jepgkhik", (), record, "")
    assert not repeats(copied, "jepgkhik", (), record, "\n".join(record))
    assert not repeats(copied + "\n" + "- something that nobody had said before\n" * 20, "jepgkhik", (), record, "")
    assert not repeats("\n".join(record[:3]), "jepgkhik", (), record, ""), "too little to tell"
    assert repeats("x jepgkhik y", "jepgkhik", (), (), "")


def test_one_line_of_ours_may_be_chance_two_are_not() -> None:
    ours = [line.strip(" -.") for line in instructions() if len(line) > 40]
    assert not repeats(ours[0], "jepgkhik", instructions(), (), "")
    assert repeats(ours[0] + "\n" + ours[3], "jepgkhik", instructions(), (), "")
    assert not repeats(GOOD, "jepgkhik", instructions(), (), "")


def test_work_before_the_notes_or_in_their_last_step_is_work() -> None:
    before = "I change the file now. " * 60 + "\n" + GOOD
    assert continues(before, parse(before))
    short = "Here are the notes:\n" + GOOD
    assert not continues(short, parse(short))
    behind = GOOD + "\n" + "I change the file now.\n" * 90
    assert continues(behind, parse(behind))
    steps = GOOD + "\n" + "- and then the other side\n" * 8
    assert not continues(steps, parse(steps))
