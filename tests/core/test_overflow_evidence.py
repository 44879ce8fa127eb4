"""What of a provider's answer is searched, in which form, and how much of it at most."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.overflow_evidence import PARSED, SEARCHED, gather, normalise


def of(value: Any, *, failed: bool = True) -> Any:
    return gather(json.dumps(value).encode(), failed=failed)


def test_text_is_brought_into_one_form() -> None:
    assert normalise('The  MODEL\u2019s `max_tokens`\n is \\"1\\"') == "the models max_tokens is 1"
    assert normalise("<h1>Too&nbsp;long</h1>") == "too long"
    assert normalise("see https://example.com/a#prompt-is-too-long for more") == "see for more"


def test_codes_statuses_and_numbers_are_kept_beside_the_text() -> None:
    evidence = of({"error": {"code": "Some_Code", "status_code": 429, "n_ctx": 4096, "type": None, "ok": True}})
    assert "some_code" in evidence.codes and "429" in evidence.codes
    assert evidence.statuses == {429}
    assert evidence.numbers == {"status_code": 429, "n_ctx": 4096}
    assert of({"error": {"code": "503"}}).statuses == {503}
    assert of({"limit": 429}).statuses == frozenset()


def test_json_inside_strings_is_read_and_not_repeated() -> None:
    inner = json.dumps({"message": "inner words", "code": "deep_code"})
    evidence = of({"message": inner})
    assert evidence.text.split("\n") == ["inner words", "deep_code"]
    around = of({"message": f"before {inner} behind [1] and {{broken"})
    assert "inner words" in around.text and "before" in around.text and "deep_code" in around.codes


def test_json_is_unwrapped_three_levels_deep_and_no_deeper() -> None:
    body: Any = {"code": "x_0"}
    for level in range(1, 6):
        body = {"code": f"x_{level}", "message": json.dumps(body)}
    assert {"x_5", "x_4", "x_3", "x_2"} <= of(body).codes
    assert "x_1" not in of(body).codes


def test_only_stated_errors_of_a_success_are_read() -> None:
    assert of({"choices": [{"message": {"content": "words"}}], "usage": {"a": 1}}, failed=False).empty
    assert (
        of({"error": {"message": "words"}, "choices": [{"delta": {"content": "more"}}]}, failed=False).text == "words"
    )
    assert gather(b"plain words", failed=False).empty
    assert gather(b"data: plain words", failed=False).empty


def test_what_users_said_is_left_out_of_a_failure() -> None:
    assert of({"error": "words", "input": "said", "messages": [{"content": "said"}]}).text == "words"


def test_each_frame_of_a_stream_is_read_with_or_without_a_blank() -> None:
    frames = b'event:error\ndata:{"message": "one"}\n\ndata: {"message": "two"}\n\nerror: three\n\ndata: [DONE]\n'
    assert gather(frames, failed=True).text.split("\n") == ["one", "two", "three", "[done]"]


@pytest.mark.parametrize("body", [b"", b"   ", b"{}", b"[]", b"null", b'{"error": null}', b'{"error": ""}'])
def test_an_answer_without_words_is_empty(body: bytes) -> None:
    assert gather(body, failed=True).text in ("", "null")


def test_the_ends_of_what_is_too_long_are_read() -> None:
    middle = b"x" * PARSED
    text = gather(b"first " + middle + b" last", failed=True).text
    assert "first" in text and "last" in text and len(text) < SEARCHED
    leaf = of({"message": "first " + "x" * 100_000 + " last"}).text
    assert "first" in leaf and "last" in leaf and len(leaf) < SEARCHED


def test_the_text_is_bounded_however_many_strings_there_are() -> None:
    many = of([{"message": f"{number} " + "y" * 500} for number in range(5000)])
    assert len(many.text) <= SEARCHED + 300


def test_strings_behind_the_first_hundreds_and_texts_behind_the_bound_stay_unread() -> None:
    assert "word" in of([{"message": ""}] * 250 + [{"message": "word"}]).text
    assert of([{"message": ""}] * 5000 + [{"message": "word"}]).empty
    assert "word" not in of([{"message": letter * 6000} for letter in "abcdef"] + [{"message": "word"}]).text
    assert of({"response": "said", "message": "words", "code": 1}, failed=False).empty
    assert gather(b'[1, null, {"error": "word"}]', failed=False).text == "word"
    assert gather(b"data: 1\ndata: [1]\n", failed=False).empty


@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_make_it_raise(body: bytes, failed: bool) -> None:
    evidence = gather(body, failed=failed)
    assert evidence.text == evidence.text.lower() or not evidence.text.isascii()


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b'{"a":' * 900 + b"1" + b"}" * 900, b"9" * 10_000])
def test_deep_and_long_json_is_read_without_raising(body: bytes) -> None:
    gather(body, failed=True)
    gather(json.dumps({"message": body.decode()}).encode(), failed=True)
