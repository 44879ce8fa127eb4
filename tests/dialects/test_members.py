"""A body is opened one level deep: every member keeps its bytes, and nothing hides in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Malformed
from proxy.dialects.members import open_members, present, ranged, refuse_routing, typed

SURROGATES = st.text(st.sampled_from('ab"\\,:é😀\ud83d\ude00{}[]'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | SURROGATES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab":\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)


def refusal(body: bytes, *arrays: str, depth: int = 64) -> Malformed:
    with pytest.raises(Malformed) as caught:
        open_members(body, depth, arrays)
    return caught.value


def replaced(value: object) -> object:
    """`value` as a reader sees it that cannot hold lone surrogates."""
    return json.loads(
        json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


WRITERS: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {},
    {"indent": 2},
    {"indent": "\t", "separators": (" ,", " :")},
]


@given(
    body=st.dictionaries(st.text('abmo"\\:é', max_size=5), VALUES, max_size=5),
    messages=st.lists(VALUES, max_size=4),
    how=st.sampled_from(WRITERS),
)
def test_every_member_and_element_comes_back_as_its_own_bytes(
    body: dict[str, Any], messages: list[Any], how: dict[str, Any]
) -> None:
    raw = json.dumps({**body, "messages": messages}, **how).encode()
    value = json.loads(raw)
    fields, arrays = open_members(raw, 64, ("messages",))
    assert list(fields) == list(value)
    # Loaded exactly: a lone surrogate is still the one that came, in its own place.
    assert {name: json.loads(part) for name, part in fields.items()} == value
    assert [json.loads(part) for part in arrays["messages"]] == value["messages"]
    for part in (*fields.values(), *arrays["messages"]):
        assert part in raw


@given(value=st.dictionaries(SURROGATES, SURROGATES, min_size=1, max_size=5), how=st.sampled_from(WRITERS))
def test_whatever_the_members_are_called_the_answer_is_members_or_a_refusal(
    value: dict[str, str], how: dict[str, Any]
) -> None:
    """Two names that differ only in halves of a character are one name to most readers; the rest must come through."""
    raw = json.dumps(value, **how).encode()
    try:
        fields, _ = open_members(raw, 64)
    except Malformed as error:
        assert error.message == "An object names the same member twice."
        assert len({str(replaced(name)) for name in value}) < len(value)
    else:
        assert [json.loads(part) for part in fields.values()] == list(json.loads(raw).values())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1} x',
        b'{"a":1}{}',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":01}',
        b'{"a":"\x01"}',
        rb'{"a":"\x"}',
        rb'{"a":"\ud83"}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32"),
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\xbd"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"a":[' + b"[" * 70 + b"]" * 70 + b"]}",
        b'{"a":1,"b":2,"a":3}',
        b'{"a": 1, "a": 1}',
        rb'{"a":1,"\u0061":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":[{"b":1,"b":1}]}',
    ],
)
def test_what_is_no_sound_json_is_refused(body: bytes) -> None:
    error = refusal(body, "messages")
    assert (error.status, error.code) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null"])
def test_a_body_is_an_object(body: bytes) -> None:
    assert refusal(body).message == "The body is not a JSON object."


@pytest.mark.parametrize("value", [b"{}", b"1", b'"a"', b"true"])
def test_an_array_is_an_array(value: bytes) -> None:
    error = refusal(b'{"messages":' + value + b"}", "messages")
    assert (error.code, error.param) == ("invalid_type", "messages")


def test_an_array_that_is_null_or_absent_is_not_listed() -> None:
    assert open_members(b'{"messages":null}', 64, ("messages",)) == ({"messages": b"null"}, {})
    assert open_members(b"{}", 64, ("messages",)) == ({}, {})


@pytest.mark.parametrize("long", [0, 400])
def test_a_formatted_body_is_no_duplicate_wherever_its_longest_member_stands_again(long: int) -> None:
    text = "input" + "x" * long
    for value in (
        {text: text, "model": "m"},
        {"model": "model", "input": "x"},
        {"n1": 1, "n0": 2},
        {"a": [text] * 3, "b": [[text] * 3], "c": [text] * 3},
        {"messages": [{"role": "user", "content": text}], "model": "m"},
    ):
        for how in WRITERS:
            fields, _ = open_members(json.dumps(value, **how).encode(), 64)
            assert {name: json.loads(raw) for name, raw in fields.items()} == value


def test_a_duplicate_is_found_beside_a_long_member_that_begins_like_another() -> None:
    long = json.dumps(["y" * 300, 1])
    other = json.dumps(["y" * 300, 2, 3])
    sound = f'{{"z": {{"k": {long}}}, "a": {other}, "b": 1}}'.encode()
    assert set(open_members(sound, 64)[0]) == {"z", "a", "b"}
    twice = f'{{"a": {long}, "b": 1, "c": {other}, "b": 1}}'.encode()
    assert refusal(twice).message == "An object names the same member twice."


def test_the_messages_own_duplicates_are_left_to_their_reader() -> None:
    body = b'{"messages":[{"role":"user","role":"user"}],"model":"m"}'
    assert open_members(body, 64, ("messages",))[1]["messages"] == (b'{"role":"user","role":"user"}',)


def test_two_messages_that_differ_only_in_half_a_character_keep_their_own_halves() -> None:
    body = rb'{"a":"\ud83d","messages":[{"c":"\ud83d"},{"c":"\ud83e"},{"c":"\ufffd"}],"b\u003ab":"\ude00"}'
    fields, arrays = open_members(body, 64, ("messages",))
    assert arrays["messages"] == (rb'{"c":"\ud83d"}', rb'{"c":"\ud83e"}', rb'{"c":"\ufffd"}')
    assert fields["a"] == rb'"\ud83d"'
    assert fields["b:b"] == rb'"\ude00"'


def test_present_means_there_and_not_null() -> None:
    assert present({"a": b"0"}, "a")
    assert not present({"a": b"null"}, "a")
    assert not present({}, "a")


def test_a_member_has_its_type_or_is_refused_by_name() -> None:
    fields = {"a": b'"x"', "n": b"null", "i": b"7", "s": rb'"\ud83d"', "big": b"9" * 30}
    assert typed(fields, "a", str) == "x"
    assert typed(fields, "n", str) is None
    assert typed(fields, "gone", str) is None
    assert typed(fields, "s", str) == "\ufffd"
    assert ranged(typed(fields, "i", int), "i", 1, 10) == 7
    assert ranged(None, "n", 1, 10) is None
    for name, kind in (("a", int), ("i", str), ("i", bool)):
        with pytest.raises(Malformed) as caught:
            typed(fields, name, kind)
        assert (caught.value.code, caught.value.param) == ("invalid_type", name)
    for least, most in ((8, 10), (1, 6)):
        with pytest.raises(Malformed) as caught:
            ranged(7, "i", least, most)
        assert (caught.value.code, caught.value.param) == ("out_of_range", "i")
    with pytest.raises(Malformed):
        ranged(typed(fields, "big", int), "big", 1, 10)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"api_base": b'"http://x"'}, "api_base"),
        ({"base_url": b"null"}, "base_url"),
        ({"metadata": b'{"a":[{"headers":{}}]}'}, "headers"),
        ({"x": b'[[{"api_key":1}]]'}, "api_key"),
        ({"x": rb'{"api\u005fkey":1}'}, "api_key"),
        ({"x": rb'{"\ud83d":{"proxy":1}}'}, "proxy"),
    ],
)
def test_a_member_that_steers_the_gateways_own_call_is_refused_at_any_depth(
    fields: dict[str, bytes], named: str
) -> None:
    with pytest.raises(Malformed) as caught:
        refuse_routing(fields, but=("messages",))
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", named)


def test_content_may_hold_any_name() -> None:
    refuse_routing({"messages": b'[{"api_key":1}]', "tools": b'[{"headers":1}]'}, but=("messages", "tools"))
    refuse_routing({"x": b'{"a":"headers"}', "y": b'"api_key"', "z": b"7"}, but=())


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000])
def test_a_number_that_nothing_holds_is_refused_where_it_is_read(number: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        refuse_routing({"x": b'{"a":' + number + b"}"}, but=())
    assert (caught.value.code, caught.value.param) == ("invalid_json", "x")
