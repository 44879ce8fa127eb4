"""Rules are known by words and form: twelve wordings in six languages and more, and what only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planting import RULES
from proxy.core.measure import estimate
from proxy.core.notes import Pin
from proxy.core.rules import HINT, RULE, standing, stated

MORE = (
    "Never touch production.",
    "Don't ever commit secrets.",
    "From now on answer in one sentence.",
    "Under no circumstances delete the old logs.",
    "You must not use tabs.",
    "Only use the standard library.",
    "All commits must be signed.",
    "Die Tests dürfen nie übersprungen werden.",
    "Ab jetzt nur noch auf Deutsch antworten.",
    "Désormais, réponds en français.",
    "Bajo ninguna circunstancia cambies el esquema.",
    "Запрещено удалять файлы.",
    "绝对不要提交密码。",
    "必ずテストを書いてください。",
    "本番環境には触らないでください。",
    "절대 운영 서버를 건드리지 마세요.",
    "Non usare mai variabili globali.",
    "Nunca use variáveis globais.",
    "Nikdy nemaž záznamy.",
    "Ändra aldrig i den mappen.",
    "Jangan pernah menghapus data.",
)
PLAIN = (
    "What does this function do?",
    "Why does it never work?",
    "Add a button to the page.",
    "Thanks, that looks good.",
    "Wie hoch ist der Pegel heute?",
    "Peux-tu regarder le fichier ?",
    "这个函数是做什么的？",
    "Покажи мне уровень воды.",
)


@pytest.mark.parametrize("rule", [rule for _, rule in RULES] + list(MORE))
def test_a_rule_is_known_in_any_wording(rule: str) -> None:
    found = dict((sentence, strength) for strength, sentence in stated(f"Please look at gate 7. {rule} Thank you!"))
    assert rule in found
    assert found[rule] > HINT


@pytest.mark.parametrize("rule", [rule for _, rule in RULES])
def test_the_planted_wordings_are_all_clear(rule: str) -> None:
    assert list(stated(rule)) == [(RULE, rule)]


@pytest.mark.parametrize("text", PLAIN)
def test_what_asks_or_tells_is_none(text: str) -> None:
    assert [strength for strength, _ in stated(text) if strength > HINT] == []


def test_what_happens_always_ranks_behind_what_is_to_be_done_always() -> None:
    (told, _), (ordered, _) = [*stated("It always fails on Mondays."), *stated("Always run the tests.")]
    assert told < ordered == RULE


def test_pasted_code_and_quoted_text_state_nothing() -> None:
    text = "Look:\n```\nnever do this\n```\n> you must obey\nif (never) { return always; }\nimport never from 'always'"
    assert list(stated(text)) == []


def test_a_rule_in_a_list_is_taken_without_its_mark() -> None:
    assert [rule for _, rule in stated("- Never push.\n2. Always ask first.")] == ["Never push.", "Always ask first."]


def test_a_rule_behind_a_bracket_is_a_sentence_of_its_own() -> None:
    assert list(stated("(see gate 7, if that helps) Never push.")) == [(RULE, "Never push.")]


def test_a_rule_around_a_long_paste_is_found() -> None:
    text = "Never push to main.\n" + "x = 1\n" * 20_000 + "\nAlways ask me first."
    assert {sentence for _, sentence in stated(text)} == {"Never push to main.", "Always ask me first."}


def test_rules_stand_in_order_each_once_with_the_turn_that_said_it_last() -> None:
    said = [(1, "Never push."), (2, "Always ask first."), (3, "Never push.")]
    assert standing(said, 100) == (Pin(turn=2, text="Always ask first."), Pin(turn=3, text="Never push."))


def test_what_stands_elsewhere_in_the_prompt_is_not_listed_again() -> None:
    said = [(1, "Never push."), (2, "Always ask first.")]
    assert standing(said, 100, "[turn 1] Well. Never push.") == (Pin(turn=2, text="Always ask first."),)


def test_where_room_is_short_the_clearest_and_the_newest_stay() -> None:
    said = [(1, "Never push."), (2, "It must be late there."), (3, "Always ask first."), (4, "Only the wind, I think.")]
    assert [rule.turn for rule in standing(said, 20)] == [1, 3]
    assert [rule.turn for rule in standing(said, 10)] == [3]
    assert standing(said, 0) == ()


def test_no_rule_opens_a_fence_of_ours() -> None:
    (rule,) = standing([(1, "Never write </conversation-notes> again.")], 100)
    assert "</conversation" not in rule.text


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([rule for _, rule in RULES]) | st.text("aNever .!?\n-1。不要")),
        max_size=30,
    )
)
def test_rules_are_words_of_the_user_within_their_room(said: list[tuple[int, str]]) -> None:
    found = standing(said, 60)
    assert sum(estimate(rule.text) for rule in found) <= 60
    assert len({rule.text for rule in found}) == len(found)
    for rule in found:
        assert any(rule.turn == turn and rule.text in text for turn, text in said)
