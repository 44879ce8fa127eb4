"""What may pass as JSON, with the traps that lie in bytes which are forwarded unread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Malformed
from proxy.dialects.strict import (
    check_depth,
    check_unique,
    check_utf8,
    check_value,
    fail,
    without_lone_surrogates,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\:{}[] é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab":\\', max_size=3), inner, max_size=3),
    max_leaves=12,
)


def deep(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(deep, value.values()), default=0)
    return 1 + max(map(deep, value), default=0) if isinstance(value, list) else 0


def refused(check: Callable[[], None]) -> str:
    """The message of the refusal, "" for none."""
    try:
        check()
    except Malformed as error:
        assert error.code == "invalid_json"
        return error.message
    return ""


@given(value=VALUES, most=st.integers(0, 6), spaced=st.booleans())
def test_depth_is_counted_outside_strings_only(value: object, most: int, spaced: bool) -> None:
    raw = json.dumps(value, indent=1 if spaced else None).encode()
    assert bool(refused(lambda: check_depth(raw, most))) == (deep(value) > most)


def test_depth_names_the_member() -> None:
    with pytest.raises(Malformed) as caught:
        check_depth(b"[[]]", 1, "tools")
    assert (caught.value.param, caught.value.status) == ("tools", 400)


@given(value=VALUES, spaced=st.booleans(), escaped=st.booleans())
def test_what_a_json_library_writes_names_nothing_twice(value: object, spaced: bool, escaped: bool) -> None:
    raw = json.dumps(value, indent=2 if spaced else None, ensure_ascii=escaped).encode()
    check_unique(raw)


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a":1,"a":2}',
        rb'{"a" : 1 , "b":{"c":1},"a":2}',
        rb'{"a":[{"b":1,"b":1}]}',
        rb'[{"b":1},{"b":1,"b":2}]',
        rb'{"a":1,"\u0061":2}',
        rb'{"\u0041":1,"A":2}',
        rb'{"x\/y":1,"x/y":2}',
        '{"é":1,"\\u00e9":2}'.encode(),
        rb'{"":1,"":2}',
        rb'{"content":"b",":x":1,":x":2}',
        rb'{"content":"\\","a":1,"a":2}',
    ],
)
def test_a_name_that_stands_twice_is_refused_however_it_is_written(raw: bytes) -> None:
    assert refused(lambda: check_unique(raw)) == "An object names the same member twice."


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a":"\"a\":1,\"a\":2"}',
        rb'{"a":{"a":{"a":1}}}',
        rb'[{"a":1},{"a":1}]',
        rb'{"a":"\\","b":"a"}',
        rb'{"a":"\ud83d","b":"\ud83d\ude00"}',
        rb'"a"',
    ],
)
def test_a_name_inside_a_string_or_another_object_is_no_second_one(raw: bytes) -> None:
    check_unique(raw)


MEMBERS = st.sampled_from(
    [
        b'"a":"x"',
        b'"a":null',
        b'"b":1',
        b'"b": 1',
        b'"c":[1,{"x":1,"x":2}]',
        b'"c":[[[1]]]',
        b'"d":{"e":{}}',
        rb'"\u0061":true',
        b'"":0',
        '"\u00e9":"\u00e9"'.encode(),
        rb'"s":"\",\"a\":1"',
        rb'"n":"\ud83d"',
        b'"z":' + b"9" * 5000,
        b'"w":x',
    ]
)


@given(
    members=st.lists(MEMBERS, max_size=4), most=st.integers(0, 4), outer=st.sampled_from([b"{%b}", b"[{%b}]", b"{%b"])
)
def test_depth_and_names_looked_at_together_are_what_they_are_one_by_one(
    members: list[bytes], most: int, outer: bytes
) -> None:
    raw = outer % b",".join(members)

    def one_by_one() -> None:
        check_depth(raw, most)
        check_unique(raw)

    assert bool(refused(lambda: check_value(raw, most))) == bool(refused(one_by_one)), raw


@pytest.mark.parametrize("raw", [b"{", b"", b'{"a":}', b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_what_is_no_json_is_refused_and_never_raises_otherwise(raw: bytes) -> None:
    assert refused(lambda: check_unique(raw)) == "The body is not valid JSON."


@pytest.mark.parametrize("body", [b"\xff", b"{}\xc3", "{}".encode("utf-16"), b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8"])
def test_what_is_no_utf8_is_refused(body: bytes) -> None:
    assert refused(lambda: check_utf8(body)) == "The body is not valid UTF-8."


def test_utf8_passes_with_or_without_a_mark() -> None:
    check_utf8(b"{}")
    check_utf8('{"é": "😀"}'.encode("utf-8-sig"))


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00x"', rb'"\ufffdx"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ud83d\u0041"', rb'"\ufffd\u0041"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
    ],
)
def test_only_a_lone_surrogate_is_replaced_and_in_its_own_length(body: bytes, becomes: bytes) -> None:
    assert without_lone_surrogates(body) == becomes
    assert len(becomes) == len(body)
    msgspec.json.decode(becomes)


def test_a_body_without_surrogates_is_the_same_object() -> None:
    body = rb'{"a":"\u00e9"}'
    assert without_lone_surrogates(body) is body


@given(text=st.text(st.characters(), max_size=20))
def test_the_replacement_is_what_any_reader_would_put_there(text: str) -> None:
    body = json.dumps(text).encode()
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert json.loads(without_lone_surrogates(body)) == expected


def test_a_failure_carries_code_and_member() -> None:
    error = fail("no", "model", "invalid_type")
    assert (error.code, error.param, error.status) == ("invalid_type", "model", 400)


@pytest.mark.parametrize("inside", [b'a \\"k\\" ', b'\\"k\\": ', b"\\\\", b"{[", b"\\ud83d", b"k"])
@pytest.mark.parametrize("check", [check_unique, lambda raw: check_depth(raw, 4), without_lone_surrogates])
def test_every_check_is_linear_in_what_it_reads(check: Callable[[bytes], object], inside: bytes) -> None:
    """A tool result is often JSON inside JSON: thousands of escaped quotes in one string. Eight times the text may take
    a little more than eight times as long, never sixty-four."""

    def seconds(times: int) -> float:
        raw = b'{"role":"tool","content":"' + inside * times + b'"}'
        began = time.process_time()
        check(raw)
        return time.process_time() - began

    few = min(seconds(1000) for _ in range(5))
    assert min(seconds(8000) for _ in range(3)) < 30 * few + 0.01
