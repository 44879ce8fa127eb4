"""Planted facts and rules on part of the recorded conversations; all of them: `python benchmarks/facts.py`.

After one, three, ten and twenty compactions, whatever the summary model is like: no rule is gone, no request
unaccounted for, no fact is lost beyond reach, and notes stop growing. `make slow` goes on to a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.facts import BARS, CHARACTERS, COMPACTIONS, WINDOW, Score, line, long_enough, play
from benchmarks.planting import RULES, planted
from tests.data import conversations
from tests.scenarios.conftest import Figure

pytestmark = pytest.mark.data

PART = ("tau-airline-3-0", "tau-airline-0-3", "swe-marshmallow-text", "ogx-long-102")


def played(character: str, numbers: Sequence[int]) -> dict[int, Score]:
    scores = {number: Score() for number in numbers}
    rows = [row for row in conversations("tau-bench", "swe-agent", "ogx") if row.id in PART]
    assert len(rows) == len(PART)
    for row in rows:
        assert long_enough(row)
        play(row, character, scores)
    for number, score in scores.items():
        print(line(character, number, score))
    return scores


def prove(character: str, numbers: Sequence[int], figure: Figure) -> None:
    scores = played(character, numbers)
    last = scores[max(scores)]
    assert last.facts.total() > 80
    assert last.rules.total() == len(RULES) * len(PART)
    assert max(max(score.sizes) for score in scores.values()) < WINDOW / 2
    early, late = (sum(scores[number].sizes) for number in sorted(scores)[-2:])
    told = f"{character} summaries, up to {max(scores)} compactions"
    figure.all(
        (f"{told}: rules word for word", min(score.rules_kept for score in scores.values()), f">= {BARS['rules']}"),
        (f"{told}: requests gone", sum(score.requests["lost"] for score in scores.values()), "== 0"),
        (
            f"{told}: facts told or to be had",
            min(score.share("told", "behind") for score in scores.values()),
            f">= {BARS['facts']}",
        ),
        (f"{told}: notes after {max(scores)} over those before", late / early, "<= 1.15"),
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("character", CHARACTERS)
def test_what_was_planted_is_told_or_can_be_had_after_twenty_compactions(character: str, figure: Figure) -> None:
    prove(character, (1, 3, 10, 20), figure)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("character", CHARACTERS)
def test_what_was_planted_is_told_or_can_be_had_after_a_hundred(character: str, figure: Figure) -> None:
    prove(character, COMPACTIONS, figure)


def test_a_summary_model_writes_the_notes_where_it_is_good_or_cunning_and_never_where_it_is_empty() -> None:
    written = {character: played(character, (3,))[3].written for character in CHARACTERS}
    assert written == {"good": len(PART), "hostile": len(PART), "empty": 0}


def test_facts_stand_once_at_every_tenth_and_rules_all() -> None:
    (row,) = (row for row in conversations("tau-bench") if row.id == PART[0])
    plants = planted(row.id, row.messages)
    text = "\n".join(str(item.get("content")) for item in plants.messages)
    assert {kind for kind, *_ in plants.facts} == {"result", "model", "user"}
    assert all(text.count(fact.text) == 1 for fact in plants.facts)
    assert all(text.count(rule) == 1 for *_, rule in plants.rules)
    assert not any(fact.text in str(row.messages) for fact in plants.facts)
    assert len({fact.index * 10 // len(row.messages) for fact in plants.facts}) == 10
