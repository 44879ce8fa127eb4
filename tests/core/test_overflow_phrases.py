"""The tables are sound: written for normalised text, and quick on anything."""

from __future__ import annotations

import pytest

from proxy.core import overflow_phrases as phrases
from proxy.core.overflow_evidence import normalise

TABLES = ["EARLY", "VETO", "PHRASES", "SUSPECT", "VETO_CODES"]


@pytest.mark.parametrize("name", TABLES)
def test_no_pattern_asks_for_what_normalising_takes_away(name: str) -> None:
    pattern: str = getattr(phrases, name).pattern
    literals = pattern.replace("\\S", "").replace("\\W", "").replace("\\D", "")
    assert literals == literals.lower()
    assert not set("`\"'") & set(pattern)


@pytest.mark.parametrize("name", TABLES)
def test_no_table_matches_a_text_without_words(name: str) -> None:
    for text in ("", " ", "error", "invalid request", "bad request", "400"):
        assert getattr(phrases, name).search(text) is None


def test_codes_are_lower_case_and_each_has_one_meaning() -> None:
    codes = phrases.EARLY_CODES | phrases.CODES
    assert all(code == code.lower() and " " not in code for code in codes)
    assert not phrases.EARLY_CODES & phrases.CODES
    assert [code for code in codes if phrases.VETO_CODES.search(code)] == []


def test_an_output_cap_is_vetoed_and_a_sum_with_the_same_words_is_not() -> None:
    cap = normalise("`max_tokens` must be less than or equal to 8192")
    total = normalise("`inputs` tokens + `max_new_tokens` must be <= 4096")
    assert phrases.VETO.search(cap) and not phrases.EARLY.search(cap)
    assert phrases.EARLY.search(total)
