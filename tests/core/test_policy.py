"""The policy of a model is the one whose pattern says most about its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.policy import Policy, choose, specificity

PATTERNS = st.text("ab*?", min_size=1, max_size=6)


def policies(*patterns: str) -> tuple[Policy, ...]:
    return tuple(Policy(match=pattern, name=pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        ("gpt-4o", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o-*"),
        ("gpt-4o-x", "gpt-4o-?"),
        ("gpt-5", "gpt-*"),
        ("claude[1m]", "claude[1m]"),
        ("claude1", "claude*"),
        ("openai/gpt-4o", "*gpt-4o"),
        ("qwen", "*"),
        ("", "*"),
    ],
)
def test_the_most_specific_pattern_wins_whatever_the_order(model: str, pattern: str) -> None:
    known = policies("*", "gpt-*", "gpt-4o", "gpt-4o-*", "gpt-4o-?", "*gpt-4o", "claude*", "claude[1m]")
    assert choose(known, model).name == pattern
    assert choose(known[::-1], model).name == pattern


def test_where_none_matches_the_built_in_default_holds() -> None:
    assert choose((), "m") == Policy()
    assert choose(policies("gpt-*"), "qwen") == Policy()


def test_capital_letters_in_a_pattern_do_not_matter() -> None:
    assert choose(policies("Qwen*"), "qwen3").name == "Qwen*"


def test_only_stars_and_question_marks_are_wild() -> None:
    assert choose(policies("m[ab]"), "ma") == Policy()
    assert choose(policies("m[!a]"), "m[!a]").name == "m[!a]"


def test_of_two_that_say_as_much_the_one_with_fewer_wildcards_wins() -> None:
    assert specificity("gpt-*") > specificity("*gpt*")
    assert specificity("gpt-4o") > specificity("gpt-4*")
    assert specificity("*") < specificity("a")


@given(st.lists(PATTERNS, max_size=5), st.text("ab", max_size=6))
def test_no_matching_pattern_says_more_than_the_chosen_one(patterns: list[str], model: str) -> None:
    known = policies(*patterns)
    chosen = choose(known, model)
    for each in known:
        if choose((each,), model) == each:
            assert specificity(each.match) <= specificity(chosen.match)
