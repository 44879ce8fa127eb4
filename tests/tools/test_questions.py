"""`ask_user` and `request_approval`: whatever a model writes, the user is asked something, or the model is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Approval, Clarification
from proxy.core.steps import Ran
from proxy.tools.questions import answer, asked, specs


def test_the_tools_are_told_with_what_they_need() -> None:
    ask, approve = specs(["load_skill", "ask_user", "request_approval"])
    assert (ask.name, approve.name) == ("ask_user", "request_approval")
    assert json.loads(ask.parameters)["required"] == ["question"]
    assert list(json.loads(ask.parameters)["properties"]) == ["question", "options"]
    assert json.loads(approve.parameters)["required"] == ["action", "reason"]
    assert "Nothing is done for you" in approve.description
    assert specs(["load_skill"]) == ()


@pytest.mark.parametrize(
    ("arguments", "question", "options"),
    [
        ('{"question": " Which one? ", "options": ["a", "b"]}', "Which one?", ("a", "b")),
        ('{"question": "Which?"}', "Which?", ()),
        ('{"question": "Which?", "options": null}', "Which?", ()),
        ('{"question": "Which?", "options": "red\\nblue"}', "Which?", ("red", "blue")),
        ('{"question": "?!", "options": ["1. red", "(2) blue", "- green"]}', "?!", ("red", "blue", "green")),
        ('{"question": "?!", "options": ["3rd Street", "-5", "1.5 km"]}', "?!", ("3rd Street", "-5", "1.5 km")),
        ('{"question": "Which?", "options": ["a", "a", "", 7, null, [1]]}', "Which?", ("a", "7")),
        ('{"question": "Which?", "options": [{"label": "Red", "value": "r"}, {"x": 1}]}', "Which?", ("Red",)),
        ('{"question": "Which?", "options": ["two\\nlines"]}', "Which?", ("two lines",)),
        ('{"text": "Which?", "why": 3}', "Which?", ()),
        ('{"question": 42}', "42", ()),
    ],
)  # fmt: skip
def test_a_question_is_read_leniently(arguments: str, question: str, options: tuple[str, ...]) -> None:
    assert asked("q1", "ask_user", arguments) == Clarification(id="q1", question=question, options=options)


def test_an_approval_names_its_action_and_may_do_without_a_reason() -> None:
    assert asked("q1", "request_approval", '{"action": "Delete it", "reason": " It is old "}') == Approval(
        id="q1", action="Delete it", reason="It is old"
    )
    assert asked("q1", "request_approval", '{"action": "Delete it"}') == Approval(
        id="q1", action="Delete it", reason=""
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"question": ""}',
        '{"question": "  "}',
        '{"question": true}',
        '{"que',
        '{"options": ["a"]}',
    ],
)
def test_what_asks_nothing_is_answered_in_words(arguments: str) -> None:
    for name, member in (("ask_user", "question"), ("request_approval", "action")):
        ran = answer("q1", name, arguments, alone=True, first=True)
        assert ran.pause is None
        assert ran.text.startswith("The user was not asked: ")
        assert f'"{member}"' in ran.text


def test_one_question_is_asked_at_a_time_and_none_beside_the_clients_calls() -> None:
    good = '{"question": "Which?"}'
    assert answer("q1", "ask_user", good, alone=True, first=True) == Ran(
        pause=Clarification(id="q1", question="Which?")
    )
    assert "one question at a time" in answer("q1", "ask_user", good, alone=True, first=False).text
    assert "your other tool calls run first" in answer("q1", "ask_user", good, alone=False, first=True).text


def test_a_question_is_bounded() -> None:
    made = asked(
        "q1", "ask_user", json.dumps({"question": "w" * 100_000, "options": ["o" * 9_000] + [*"abcdefgh"] * 9})
    )
    assert isinstance(made, Clarification)
    assert len(made.question) < 8_100
    assert len(made.options) == 9
    assert max(map(len, made.options)) < 500
    many = asked("q1", "ask_user", json.dumps({"question": "Which?", "options": [str(number) for number in range(99)]}))
    assert isinstance(many, Clarification)
    assert len(many.options) == 20


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from(["ask_user", "request_approval"]),
    st.text() | st.dictionaries(st.sampled_from(["question", "options", "action", "reason"]), _VALUES).map(json.dumps),
    st.booleans(),
    st.booleans(),
)
def test_whatever_a_model_writes_there_is_an_answer(name: str, arguments: str, alone: bool, first: bool) -> None:
    ran = answer("q1", name, arguments, alone=alone, first=first)
    assert (ran.pause is None) is bool(ran.text)
    if type(ran.pause) is Clarification:
        assert ran.pause.question.strip()
        assert all(option.strip() and "\n" not in option for option in ran.pause.options)
