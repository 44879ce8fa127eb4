"""The numbers of an overflow: which bounds, which was asked for, which parts, how sure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Overflow
from proxy.core.overflow_evidence import normalise
from proxy.core.overflow_numbers import measure, number


def read(text: str, **numbers: int) -> Overflow:
    return measure(normalise(text), numbers)


CLASSIC = (
    "This model's maximum context length is 4096 tokens. However, you requested {} tokens "
    "({} in the messages, {} in the completion)."
)


def test_a_sum_that_the_output_breaks_is_told_from_one_that_the_prompt_breaks() -> None:
    assert read(CLASSIC.format(5000, 1000, 4000)) == Overflow(
        kind="input_plus_output", limit=4096, requested=5000, input=1000, output=4000
    )
    assert read(CLASSIC.format(5000, 4900, 100)).kind == "input"
    assert read(CLASSIC.format(4200, 4200, "None")) == Overflow(kind="input", limit=4096, requested=4200, input=4200)


@pytest.mark.parametrize(
    ("text", "input_", "output", "limit"),
    [
        ("input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000", 174167, 64000, 200000),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3900 `inputs` tokens and 512 `max_new_tokens`",
            *(3900, 512, 4096),
        ),
        (
            "max_tokens is too large: 64000. This model's maximum context length is 64001 tokens and your request has "
            "24235 input tokens (64000 > 64001 - 24235)",
            *(24235, 64000, 64001),
        ),
        (
            "maximum context length of 64000 tokens. You requested a total of 71897 tokens: 7897 tokens from the input "
            "messages and 64000 tokens for the completion.",
            *(7897, 64000, 64000),
        ),
        (
            "maximum context length is 65536 tokens. However, you requested about 92208 tokens (60833 of text input, "
            "10042 of tool input, 21333 in the output)",
            *(70875, 21333, 65536),
        ),
        ("cannot hold it (input_tokens=10009, max_new_tokens=16, kv_capacity=127)", 10009, 16, 127),
    ],
)
def test_texts_that_split_the_sum_give_its_parts(text: str, input_: int, output: int, limit: int) -> None:
    found = read(text)
    assert (found.input, found.output, found.requested, found.limit) == (input_, output, input_ + output, limit)
    assert found.limit_of == "total"


def test_functions_and_tools_count_as_input() -> None:
    found = read(
        "maximum context length is 1000 tokens. your messages resulted in 1500 tokens "
        "(1400 in the messages, 100 in the functions)"
    )
    assert (found.input, found.output, found.kind) == (1500, None, "input")


@pytest.mark.parametrize("text", ["8192", "8,192", "8_192", "8192.0", "8192.00"])
def test_numbers_are_read_in_every_way_they_are_written(text: str) -> None:
    assert number(text) == 8192
    assert read(f"input tokens (9,000) exceed the context window of {text} tokens").limit == 8192


@pytest.mark.parametrize(
    ("text", "limit_of"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", "input"),
        ("This model's maximum prompt length is 5000 but the request contains 6000 tokens", "input"),
        ("Range of input length should be [1, 98304]", "input"),
        ("prompt token count of 65446 exceeds the limit of 64000", "input"),
        ("This model's maximum context length is 5000 tokens, your messages resulted in 6000 tokens", "total"),
        ("input length 9000 exceeds the model's maximum context length 8000", "total"),
        ("request (9000 tokens) exceeds the available context size (8000 tokens)", "total"),
    ],
)
def test_limits_of_the_prompt_and_of_the_whole_window_are_told_apart(text: str, limit_of: str) -> None:
    assert read(text).limit_of == limit_of


@pytest.mark.parametrize(
    ("text", "over"),
    [
        ("prompt too long; exceeded max context length by 4 tokens", 4),
        ("too many tokens: size limit exceeded by 11326 tokens", 11326),
        ("max_tokens must be at least 1, got -4677. (parameter=max_tokens, value=-4677)", 4677),
    ],
)
def test_a_surplus_is_no_limit(text: str, over: int) -> None:
    found = read(text)
    assert (found.over_by, found.limit, found.requested, found.kind, found.exact) == (over, None, None, "input", True)


def test_lower_bounds_and_guesses_are_not_exact_but_their_limit_stands() -> None:
    bound = read(
        "maximum context length is 8192 tokens. However, you requested 1000 output tokens and your prompt contains at "
        "least 7193 input tokens, for a total of at least 8193 tokens"
    )
    assert (bound.limit, bound.requested, bound.exact, bound.kind) == (8192, 8193, False, "unknown")
    assert not read("maximum context length is 8192 tokens. However, you requested about 9000 tokens").exact
    assert not read(
        "maximum context length of 8192 tokens. You requested ~9000 tokens (8000 input + 1000 output)"
    ).exact
    assert read("maximum context length is 8192 tokens. However, you requested 9000 tokens").exact


def test_members_beat_the_text() -> None:
    found = read("the request exceeds the available context size (1 tokens)", n_prompt_tokens=1407, n_ctx=256)
    assert (found.limit, found.requested) == (256, 1407)


@pytest.mark.parametrize(
    "text",
    [
        "Malformed input request: expected maxLength: 50000, actual: 52611",
        "prompt has 52611 characters, maximum 50000 characters",
        "context window exceeds limit (2013)",
        "<400> Input length exceeds the maximum length limit. Request id: 0123456789",
        "gpt-4096 v1.2.3: your input exceeds the context window",
    ],
)
def test_characters_codes_ids_and_names_are_no_tokens(text: str) -> None:
    found = read(text)
    assert (found.limit, found.requested) == (None, None)


def test_characters_beside_an_output_limit_leave_the_prompt_unknown() -> None:
    text = (
        "You passed {} input characters and requested {} output tokens. "
        "However, the model's context length is only 4096 tokens"
    )
    assert read(text.format(13439, 4096)) == Overflow(kind="input_plus_output", limit=4096, output=4096)
    assert read(text.format(90000, 100)).kind == "input"
    assert read(text.format(9000, 2048)).kind == "unknown"


def test_two_numbers_without_telling_words_are_limit_and_request_by_size() -> None:
    found = read("the context is too small, 9000 of 8192")
    assert (found.limit, found.requested) == (8192, 9000)
    assert read("three numbers say nothing: 9000 8192 7000").limit is None


def test_a_number_without_telling_words_completes_one_that_has_them() -> None:
    found = read("your messages resulted in 9000 tokens, sorry, 8192")
    assert (found.limit, found.requested) == (8192, 9000)
    assert read("your messages resulted in 9000 tokens, sorry, 9500").limit is None
    assert read("your messages resulted in 9000 tokens").requested == 9000


def test_a_sum_below_the_limit_is_a_misreading_and_dropped() -> None:
    found = read("maximum context length is 8192 tokens (1000 in the messages, 500 in the completion)")
    assert (found.limit, found.requested) == (8192, None)


@given(st.text(alphabet="0123456789,._ ()[]+->maxtokensinputlimit\n", max_size=120))
def test_a_request_is_always_larger_than_its_limit(text: str) -> None:
    found = read(text)
    assert found.limit is None or found.requested is None or found.requested > found.limit
    assert found.kind in ("input", "input_plus_output", "unknown")
