"""The demo's price sentence counts every reported token and names whose price it is."""

from __future__ import annotations

import re

from demo.prices import cost, dollars, sentence
from demo.talk import Spoken
from proxy.catalogue import Catalogue
from proxy.core.policy import Tariff


def _spoken(prompt: int, completion: int) -> Spoken:
    return Spoken(
        number=1, answered=True, tokens=0, window=None, compaction="none",
        prompt=prompt, completion=completion, seconds=0.1, answer="",
    )  # fmt: skip


def test_a_cost_is_the_sum_over_all_turns_in_nano_dollars() -> None:
    assert cost([_spoken(1000, 10), _spoken(2000, 20)], Tariff(input=150, output=600)) == 3000 * 150 + 30 * 600
    assert dollars(6_512_300) == "$0.0065"


def test_the_sentence_names_the_model_and_the_version_of_its_prices() -> None:
    said = sentence([_spoken(1_000_000, 0)], [_spoken(2_000_000, 0)])
    card = Catalogue().card("gpt-4o-mini")
    assert card is not None and card.tariff is not None
    assert "gpt-4o-mini" in said and card.tariff.version in said
    assert re.findall(r"\$[\d.]+", said) == ["$0.3000", "$0.1500"]
