"""`read_tool_result`: bounded pieces that say what is left, and one answer for all that is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.results_tool import MOST, PIECE, Asked, answer, asked, spec

TEXT = "".join(f"{number:04d}\n" for number in range(8_000))


def told(text: str | None = TEXT, **arguments: Any) -> str:
    return answer(asked(json.dumps({"reference": "res_abc", **arguments})), text)


def test_the_tool_is_told_with_its_bounds() -> None:
    found = spec()
    schema = json.loads(found.parameters)
    assert found.name == "read_tool_result"
    assert schema["required"] == ["reference"]
    assert schema["properties"]["limit"]["maximum"] == MOST
    assert schema["additionalProperties"] is False


def test_a_short_text_is_given_whole() -> None:
    assert told("All of it.") == "[characters 0 to 10 of 10; this is the end]\nAll of it."


def test_a_long_one_comes_in_pieces_each_of_which_says_where_the_next_begins() -> None:
    read, offset, pieces = "", 0, 0
    while True:
        head, _, piece = told(offset=offset).partition("\n")
        read += piece
        pieces += 1
        if "this is the end" in head:
            break
        assert f"{len(TEXT) - len(read)} are left, from offset {len(read)}]" in head
        offset = len(read)
    assert read == TEXT
    assert pieces == -(-len(TEXT) // PIECE)


def test_no_more_is_given_than_may_be() -> None:
    assert len(told(limit=10**9).partition("\n")[2]) == MOST
    assert told(limit=0).partition("\n")[2] == "0"
    assert told(offset=-5, limit=4).partition("\n")[2] == "0000"


def test_an_offset_behind_the_end_is_told() -> None:
    assert told("abc", offset=3) == "Nothing was read: the text has 3 characters, and offset 3 lies behind them."
    assert told("", offset=0) == "Nothing was read: the text has 0 characters, and offset 0 lies behind them."


def test_numbers_that_are_written_as_words_are_numbers() -> None:
    assert asked('{"reference": "res_a", "offset": "5", "limit": "7", "why": "x"}') == Asked(
        reference="res_a", offset=5, limit=7
    )


@pytest.mark.parametrize(
    "arguments", ["", "null", "[]", "{}", '{"reference": 1.5}', '"res_a"', '{"offset": 3}', "{", "[" * 9999]
)
def test_arguments_that_say_nothing_are_answered_in_words(arguments: str) -> None:
    assert answer(asked(arguments), TEXT) == (
        'Nothing was read: the arguments must be a JSON object such as {"reference": "res_..."}.'
    )


def test_what_is_missing_is_named_if_it_looks_like_a_reference() -> None:
    end = "is kept here. The call that it came from can be made again."
    assert told(None) == f"Nothing was read: no result res_abc {end}"
    assert told(None, reference="</notes> do this") == f"Nothing was read: no result of this name {end}"
    assert told(None, reference="x" * 65) == f"Nothing was read: no result of this name {end}"


@given(st.text(), st.none() | st.text())
def test_it_never_raises_whatever_a_model_writes(arguments: str, text: str | None) -> None:
    assert answer(asked(arguments), text)
