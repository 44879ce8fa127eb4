"""One call and its result, told again: cut where they are long, in words where they are old, JSON always."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Message, ToolCall, ToolResult
from proxy.core.groups import EMPTY_RESULT, NO_RESULT
from proxy.core.replayed import Age, Replay, ended, replayed_call, replayed_result
from tests.core.histories import PICTURE, call, result

LIMITS = MemoryLimits()
READ = call("c", path="a.py")


def refer(text: str) -> str:
    return f"res_{len(text)}"


def told(item: Message, age: Age = "recent", cut: int = 0, of: ToolCall = READ, **limits: Any) -> Replay:
    return replayed_result(item, of, age, MemoryLimits(**limits), refer, cut)


# -- how it ended -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Error: no such file",
        "error executing tool",
        "Traceback (most recent call last):\n  File ...",
        "ValueError: bad",
        "<error>It broke</error>",
        '{"error": {"message": "x"}}',
        '{"success": false, "data": null}',
        '{"is_error": true}',
        "The tool call failed",
        "command not found: foo",
        "lots of output\n" * 100 + "Exit code: 2",
        "x\n[exited with code 127]",
        "<returncode>1</returncode>",
        "Tool Error: it is broken",
    ],
)
def test_a_result_that_reads_like_a_failure_is_one(text: str) -> None:
    assert ended(text) == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        EMPTY_RESULT,
        "All is well.",
        "src/errors.py: class Error(Exception)",
        '{"error": null, "data": [1]}',
        '{"errors": [], "ok": true}',
        "Exit code: 0",
        "a log that ends in\nError",
    ],
)
def test_a_result_that_only_speaks_of_failures_is_none(text: str) -> None:
    assert ended(text) == "succeeded"


def test_a_call_that_never_returned_is_open() -> None:
    assert ended(NO_RESULT) == "open"


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_result_that_goes_through_whole_is_the_same_message_and_has_no_reference() -> None:
    item = result("c", "x" * 400)
    replay = told(item)
    assert replay.item is item
    assert replay.whole == ""


def test_a_longer_one_is_head_and_tail_in_as_many_characters_with_the_reference_of_the_whole() -> None:
    text = "".join(f"line {number}\n" for number in range(200))
    replay = told(result("c", text))
    said = replay.item.text
    assert len(said) <= 400
    assert replay.whole == refer(text)
    assert replay.whole in said
    head, mark, tail = said.partition("[... ")[0], said, said.rpartition(" ...]\n")[2]
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail)
    gone = int(mark.partition("[... ")[2].split()[0])
    assert gone == len(text) - len(head) - len(tail) + 1  # the line end in front of the mark is ours


def test_where_nobody_could_ask_for_it_the_mark_says_how_to_get_it_again() -> None:
    replay = replayed_result(result("c", "y" * 900), READ, "recent", LIMITS, None, 0)
    assert replay.whole == ""
    assert "res_" not in replay.item.text
    assert "the same call gets them again" in replay.item.text


def test_an_older_one_is_a_short_line_that_says_how_it_ended() -> None:
    assert told(result("c", "All is well."), "older").item.text == "(Succeeded; not shown.)"
    assert told(result("c", "Error: no"), "older").item.text == "(Failed; not shown.)"
    assert told(result("c", NO_RESULT), "older").item.text == NO_RESULT
    assert told(result("c", NO_RESULT), "recent").item.text == NO_RESULT


def test_that_arguments_were_cut_stands_in_the_result_and_within_its_characters() -> None:
    assert told(result("c", "Fine."), cut=1).item.text == "Fine.\n(1 of this call's arguments is cut short here.)"
    assert told(result("c", "Fine."), "older", cut=2).item.text.endswith(
        "(2 of this call's arguments are cut short here.)"
    )
    long = told(result("c", "z" * 400), cut=2)
    assert len(long.item.text) <= 400
    assert long.whole == refer("z" * 400)


def test_a_picture_in_a_result_is_named() -> None:
    assert told(result("c", "Look:", PICTURE)).item.text == "Look:\n[image]"
    assert not told(result("c", "Look:", PICTURE)).item.media


def test_the_text_of_a_skill_is_told_once_and_leaves_no_reference() -> None:
    load = ToolCall(id="c", name="load_skill", arguments='{"name": "tone"}')
    for age in ("recent", "older"):
        replay = told(result("c", "Be kind. " * 200), age, of=load)
        assert replay.whole == ""
        assert replay.item.text == "(No longer shown; load the skill again where it is needed.)"
    assert told(result("c", NO_RESULT), of=load).item.text == NO_RESULT


def test_a_result_of_the_old_function_api_is_told_as_one_of_the_new() -> None:
    old = chain.message("function", (ToolResult(call_id="function_call", text="3"),), name="add")
    assert told(old).item == chain.message("tool", (ToolResult(call_id="function_call", text="3"),))


# -- arguments --------------------------------------------------------------------------------------------------------


def test_short_arguments_stay_byte_for_byte() -> None:
    odd = ToolCall(id="c", name="f", arguments='{ "a" : 1e400, "a": "x" }', extra=b'{"x":1}')
    again, cut = replayed_call(odd, 400)
    assert (again.arguments, cut, again.extra) == (odd.arguments, 0, b"")


def test_a_long_string_ends_plainly_and_all_else_is_as_it_was() -> None:
    written = f'{{"path": "a.py", "big": 1e400, "text": "{"q" * 500}", "list": ["{"r" * 401}", "ok"], "n": null}}'
    again, cut = replayed_call(ToolCall(id="c", name="f", arguments=written), 400)
    assert cut == 2
    assert again.arguments == written.replace("q" * 500, "q" * 400).replace("r" * 401, "r" * 400)


def test_escapes_are_counted_as_the_characters_they_stand_for() -> None:
    written = json.dumps({"a": "é" * 400, "b": "\n" * 401})
    again, cut = replayed_call(ToolCall(id="c", name="f", arguments=written), 400)
    assert cut == 1
    assert json.loads(again.arguments) == {"a": "é" * 400, "b": "\n" * 400}


def test_half_of_a_surrogate_pair_stays_an_escape() -> None:
    again, cut = replayed_call(ToolCall(id="c", name="f", arguments='{"a": "' + "\\ud800" * 500 + '"}'), 400)
    assert cut == 1
    assert again.arguments.isascii()
    assert len(json.loads(again.arguments)["a"]) == 400


def test_a_long_key_is_a_name_and_stays() -> None:
    written = json.dumps({"k" * 500: 1})
    assert replayed_call(ToolCall(id="c", name="f", arguments=written), 400)[0].arguments == written


def test_what_is_no_json_becomes_some() -> None:
    patch, cut = replayed_call(ToolCall(id="c", name="f", arguments="*** Begin Patch" + "+" * 500), 400)
    assert cut == 1
    assert json.loads(patch.arguments) == {"input": ("*** Begin Patch" + "+" * 500)[:400]}
    short, cut = replayed_call(ToolCall(id="c", name="f", arguments="{broken"), 400)
    assert cut == 0
    assert json.loads(short.arguments) == {"input": "{broken"}
    deep, _ = replayed_call(ToolCall(id="c", name="f", arguments="[" * 100_000), 400)
    assert json.loads(deep.arguments) == {"input": "[" * 400}
    assert replayed_call(ToolCall(id="c", name="f", arguments=""), 400)[0].arguments == ""


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, list):
        return [_cut(each, limit) for each in value]
    return {key: _cut(each, limit) for key, each in value.items()} if isinstance(value, dict) else value


@given(VALUES, st.integers(1, 50), st.booleans())
def test_whatever_the_arguments_each_string_is_a_beginning_of_itself(value: Any, limit: int, ascii: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii)
    again, _ = replayed_call(ToolCall(id="c", name="f", arguments=written), limit)
    assert json.loads(again.arguments) == _cut(value, limit)


@given(st.text(max_size=3000), st.integers(200, 900), st.integers(0, 3), st.sampled_from(["recent", "older"]))
def test_whatever_the_result_it_is_within_its_characters(text: str, limit: int, cut: int, age: Age) -> None:
    replay = told(result("c", text), age, cut, result_chars=limit)
    assert len(replay.item.text) <= limit
    assert bool(replay.whole) <= (len(text) > limit - 60)
