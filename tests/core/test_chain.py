from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.conversation import Media, Message, Reasoning, Text, ToolCall, ToolResult
from proxy.dialects.chat.messages import read_message
from tests.core.histories import START, call, conversations, model, result, system, user


def read(*wires: object) -> tuple[Message, ...]:
    return tuple(
        read_message(wire if isinstance(wire, bytes) else json.dumps(wire).encode(), place)
        for place, wire in enumerate(wires)
    )


def digest(*wires: object) -> bytes:
    return chain.follow(START, read(*wires)).last


def asked(arguments: str, **rest: object) -> dict[str, object]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}], **rest}


def test_text_that_comes_back_trimmed_or_with_other_line_ends_is_the_same() -> None:
    known = digest({"role": "assistant", "content": "The answer\nis 42. "})
    assert digest({"role": "assistant", "content": "The answer\r\nis 42."}) == known
    assert digest({"role": "assistant", "content": "\nThe answer\ris 42."}) == known
    assert digest({"role": "assistant", "content": "The answer is 42."}) != known


def test_arguments_that_were_re_serialised_are_the_same() -> None:
    known = digest(asked('{"city": "Paris", "n": 1}'))
    assert digest(asked('{"n":1,"city":"Paris"}')) == known
    assert digest(asked('{"n":2,"city":"Paris"}')) != known


@pytest.mark.parametrize("empty", ["", "  ", "{}", "{ }"])
def test_absent_arguments_and_an_empty_object_are_the_same(empty: str) -> None:
    assert digest(asked(empty)) == digest(asked("{}"))


def test_arguments_that_are_no_json_or_too_deep_stand_as_they_are() -> None:
    assert chain.canonical_arguments(" a\r\nb ") == "a\nb"
    assert chain.canonical_arguments("[" * 100_000) == "[" * 100_000


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}, {"content": []}])
def test_null_empty_and_absent_content_are_the_same(content: dict[str, object]) -> None:
    assert digest({**asked("{}"), **content}) == digest(asked("{}"))


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_string_equals_a_list_of_one_part(role: str) -> None:
    parts = [{"type": "text", "text": "hello"}]
    assert digest({"role": role, "content": parts}) == digest({"role": role, "content": "hello"})
    assert digest({"role": role, "content": [*parts, {"type": "text", "text": ""}]}) == digest(
        {"role": role, "content": "hello"}
    )


def test_a_tool_result_as_a_string_equals_one_as_a_part() -> None:
    call_ = asked("{}")
    as_text = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    as_part = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]}
    assert digest(call_, as_text) == digest(call_, as_part)


def test_reasoning_names_cache_marks_ids_and_unknown_members_are_left_out() -> None:
    known = digest({"role": "assistant", "content": "yes"})
    assert digest({"role": "assistant", "content": "yes", "reasoning_content": "hm", "id": "m1", "x": [1]}) == known
    marked = [{"type": "text", "text": "yes", "cache_control": {"type": "ephemeral"}}]
    assert digest({"role": "assistant", "content": marked, "name": "bob"}) == known
    assert chain.identify("assistant", (Reasoning(text="a"), Text(text="yes"))) == chain.identify(
        "assistant", (Text(text="yes"),)
    )


def test_tool_ids_that_changed_are_the_same_where_their_order_is() -> None:
    def pair(first: str, second: str) -> bytes:
        said = (
            model("", call(first, n=1), call(second, n=2)),
            result(first, "one"),
            result(second, "two"),
        )
        return chain.follow(START, said).last

    assert pair("a", "b") == pair("x", "y")
    swapped = (model("", call("a", n=1), call("b", n=2)), result("b", "one"), result("a", "two"))
    assert chain.follow(START, swapped).last != pair("a", "b")


def test_a_result_of_an_unknown_call_has_a_place_of_its_own() -> None:
    known = (model("", call("a")), result("a", "x"))
    orphan = (model("", call("a")), result("b", "x"))
    assert chain.follow(START, known).last != chain.follow(START, orphan).last


def test_lone_surrogates_equal_the_replacement_character() -> None:
    known = digest('{"role":"user","content":"a\ufffdb"}'.encode())
    assert digest(b'{"role":"user","content":"a\\ud800b"}') == known


def test_system_messages_are_left_out_wherever_they_stand() -> None:
    said = (user("a"), model("b"))
    dated = (system("today is monday"), user("a"), chain.message("developer", (Text(text="mid"),)), model("b"))
    assert chain.follow(START, said).last == chain.follow(START, dated).last
    assert chain.follow(START, dated).counted == (0, 1, 1, 2)


def test_media_count_by_their_content_and_texts_by_their_role() -> None:
    one, two = (Media(kind="image", digest=mark * 32, size=1) for mark in "ab")
    found = {user("see", one).digest, user("see", two).digest, user("see").digest, model("see").digest}
    found.add(chain.message("tool", (ToolResult(call_id="x", text="see", media=(one,)),)).digest)
    assert len(found) == 5


def test_blocks_cannot_run_into_one_another() -> None:
    apart = chain.identify("user", (Text(text="ab"), Text(text="c")))
    assert apart != chain.identify("user", (Text(text="a"), Text(text="bc")))
    named = chain.identify("assistant", (ToolCall(id="1", name="ab", arguments="{}"),))
    assert named != chain.identify("assistant", (ToolCall(id="1", name="a", arguments="b{}"),))


@given(conversations(), st.data())
def test_an_edit_leaves_all_digests_before_it_and_changes_all_behind_it(
    said: tuple[Message, ...], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(said) - 1))
    edited = (*said[:place], chain.message(said[place].role, (Text(text="edited here"),)), *said[place + 1 :])
    before, after = chain.follow(START, said), chain.follow(START, edited)
    assert before.after[:place] == after.after[:place]
    if said[place].role != "system":
        assert not set(before.after[place:]) & set(after.after[place:])


@given(conversations())
def test_a_longer_history_keeps_the_digests_of_the_shorter_one(said: tuple[Message, ...]) -> None:
    whole = chain.follow(START, said)
    for length in range(len(said) + 1):
        short = chain.follow(START, said[:length])
        assert short.after == whole.after[:length]
        assert whole.holds(short.last, short.counted[-1] if short.counted else 0)


def test_an_empty_chain_ends_where_it_starts() -> None:
    assert chain.follow(START, ()).last == START


def test_scopes_never_meet() -> None:
    fields = [("a", "bc", None), ("ab", "c", None), ("abc", "", None), ("a", "b", "c"), ("a", "", "bc")]
    assert len({chain.scope(b"secret", *each) for each in fields}) == len(fields)
    assert chain.scope(b"secret", "a", "b", None) == chain.scope(b"secret", "a", "b", "")
    assert chain.scope(b"other", "a", "b", None) != chain.scope(b"secret", "a", "b", None)
    assert chain.begin(b"x" * 32) != chain.begin(b"y" * 32)
    assert chain.begin(b"x" * 32) != chain.begin(b"x" * 32, version=2)


def test_the_shape_knows_system_messages_tools_and_the_compaction() -> None:
    shapes = [(b"a", b"t", None), (b"", b"t", None), (b"a", b"u", None), (b"a", b"t", "cmp_1"), (b"at", b"", None)]
    assert len({chain.shape(*each) for each in shapes}) == len(shapes)
    assert chain.shape(b"a", b"t", None) == chain.shape(b"a", b"t", None)


def test_a_reference_depends_on_the_text_and_on_whose_it_is() -> None:
    known = chain.reference(b"a" * 32, "text")
    assert known == chain.reference(b"a" * 32, "text")
    assert len({known, chain.reference(b"b" * 32, "text"), chain.reference(b"a" * 32, "other")}) == 3
