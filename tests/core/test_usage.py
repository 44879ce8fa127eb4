"""What a call costs, to the nano-dollar."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.policy import Tariff
from proxy.core.usage import Usage, UsageRow, closed, cost

TOKENS = st.integers(0, 10**7)
PRICES = st.integers(0, 10**6)
USAGES = st.builds(Usage, input=TOKENS, output=TOKENS, cached=TOKENS, cache_write=TOKENS, reasoning=TOKENS)
SOUND = st.builds(
    lambda plain, cached, written, output: Usage(
        input=plain + cached + written, output=output, cached=cached, cache_write=written
    ),
    TOKENS,
    TOKENS,
    TOKENS,
    TOKENS,
)
TARIFFS = st.builds(Tariff, input=PRICES, output=PRICES, cached=st.none() | PRICES, cache_write=st.none() | PRICES)
ROW = UsageRow(id="use_1", request="r", tenant="t", key="k", upstream="u", asked_model="a", model="m", opened_at=1.0)


def test_a_call_costs_its_tokens_at_their_prices() -> None:
    tariff = Tariff(input=2_500, output=10_000, cached=1_250, cache_write=3_125)
    usage = Usage(input=1000, output=100, cached=600, cache_write=200)
    assert cost(usage, tariff) == 200 * 2_500 + 600 * 1_250 + 200 * 3_125 + 100 * 10_000


@given(SOUND, TARIFFS)
def test_every_input_token_is_paid_once_at_one_of_three_prices(usage: Usage, tariff: Tariff) -> None:
    paid = cost(usage, tariff)
    assert paid is not None
    plain = usage.input - usage.cached - usage.cache_write
    cached = tariff.input if tariff.cached is None else tariff.cached
    written = tariff.input if tariff.cache_write is None else tariff.cache_write
    parts = plain * tariff.input, usage.cached * cached, usage.cache_write * written, usage.output * tariff.output
    assert paid == sum(parts)


@given(USAGES, TARIFFS)
def test_a_cost_is_never_negative_nor_above_all_at_the_dearest_price(usage: Usage, tariff: Tariff) -> None:
    dearest = max(tariff.input, tariff.cached or 0, tariff.cache_write or 0)
    paid = cost(usage, tariff)
    assert paid is not None
    assert 0 <= paid <= usage.input * dearest + usage.output * tariff.output


@given(USAGES, PRICES, PRICES)
def test_where_the_cache_has_no_price_it_costs_what_input_costs(usage: Usage, input: int, output: int) -> None:
    assert cost(usage, Tariff(input=input, output=output)) == usage.input * input + usage.output * output


@given(USAGES, TARIFFS)
def test_reasoning_is_inside_the_output_and_costs_nothing_more(usage: Usage, tariff: Tariff) -> None:
    assert cost(usage, tariff) == cost(msgspec.structs.replace(usage, reasoning=0), tariff)


def test_without_a_tariff_there_is_no_cost_and_the_row_says_so() -> None:
    assert cost(Usage(input=1), None) is None
    row = closed(ROW, "ok", Usage(input=1, output=2, estimated=True), None, duration=0.5)
    assert (row.cost, row.unpriced, row.price_source, row.price_version) == (None, True, None, None)
    assert (row.input, row.output, row.estimated, row.duration, row.status) == (1, 2, True, 0.5, "ok")


def test_a_price_of_nought_is_a_price() -> None:
    row = closed(ROW, "ok", Usage(input=1), Tariff(input=0, output=0, source="policy", version="3"), duration=0.5)
    assert (row.cost, row.unpriced, row.price_source, row.price_version) == (0, False, "policy", "3")


@pytest.mark.parametrize("field", ["id", "request", "tenant", "key", "upstream", "asked_model", "model", "opened_at"])
def test_closing_a_row_leaves_what_it_was_opened_with(field: str) -> None:
    row = closed(ROW, "failed", Usage(input=1, cached=2, cache_write=3, reasoning=4), None, duration=1)
    assert getattr(row, field) == getattr(ROW, field)
    assert (row.cached, row.cache_write, row.reasoning) == (2, 3, 4)
