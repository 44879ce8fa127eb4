"""Bodies of the Conversations API: what may be asked for, and items as the chat messages that they become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from proxy.core.errors import Malformed
from proxy.core.unfolded import Part
from proxy.dialects.chat.messages import read_message
from proxy.dialects.conversation_bodies import addition, creation, description, going_back
from proxy.dialects.conversation_items import items

NONE: frozenset[str] = frozenset()


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def wires(*given: Any, open: frozenset[str] = NONE) -> list[Any]:
    return [json.loads(made.wire) for made in addition(body({"items": list(given)}), open)]


def refusal(read: Any, *given: Any) -> tuple[str, str | None]:
    with pytest.raises(Malformed) as refused:
        read(*given)
    return refused.value.code, refused.value.param


def call(id: str, name: str = "look") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": "{}"}


def result(id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def wire_call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_nothing_and_null_are_a_conversation_of_nothing() -> None:
    for nothing in (b"", b" ", b"{}", body({"metadata": None, "items": None, "user": None})):
        asked = creation(nothing)
        assert (asked.metadata, asked.messages, asked.end_user) == ({}, (), None)


def test_metadata_may_be_as_large_as_openai_has_it() -> None:
    most = {f"{number:>064}": "v" * 512 for number in range(16)}
    assert creation(body({"metadata": most})).metadata == most
    assert description(body({"metadata": None})) == {}
    assert refusal(description, body({"metadata": most | {"k": "v"}})) == ("out_of_range", "metadata")


def test_a_lone_surrogate_is_read_as_what_stands_for_one() -> None:
    assert creation(rb'{"metadata": {"k": "\ud83d!"}}').metadata == {"k": "\ufffd!"}


def test_one_text_is_a_text_and_more_are_parts() -> None:
    text, image = {"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": "data:,x"}
    assert (
        wires({"role": "user", "content": "Look."}, {"type": "message", "role": "user", "content": [text]})
        == [{"role": "user", "content": "Look."}] * 2
    )
    assert wires({"role": "user", "content": [text, image]}) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "data:,x"}}],
        }
    ]


def test_calls_stand_in_the_message_before_them() -> None:
    assert wires({"role": "assistant", "content": "I look."}, call("a"), call("b"), result("b"), result("a")) == [
        {"role": "assistant", "content": "I look.", "tool_calls": [wire_call("a"), wire_call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    assert wires({"role": "user", "content": "Go."}, call("a"))[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [wire_call("a")],
    }


def test_a_result_answers_a_call_that_is_open_here_or_in_the_conversation() -> None:
    assert wires(result("a"), result("b"), open=frozenset("ab"))[1]["tool_call_id"] == "b"
    orphan = ("invalid_items", "items[1].call_id")
    for said in ([result("a"), result("a")], [{"role": "user", "content": "x"}, result("a")], [call("b"), result("a")]):
        assert refusal(addition, body({"items": said}), frozenset("a")) == orphan
    assert wires({"role": "system", "content": "x"}, result("a"), open=frozenset("a"))[1]["tool_call_id"] == "a"


def test_what_a_model_thought_is_left_aside() -> None:
    assert wires({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text"}]}) == []


@pytest.mark.parametrize("turns", [1, 7, 1_000_000])
def test_turns_are_counted_from_one(turns: int) -> None:
    assert going_back(body({"turns": turns})) == turns
    for wrong, code in ((0, "out_of_range"), (-turns, "out_of_range"), (1.5, "invalid_type"), (None, None)):
        found = refusal(going_back, body({"turns": wrong}))
        assert found == (code or "missing_required_parameter", "turns")


texts = some.text(some.sampled_from('ab"\\ é\n😀'), max_size=5)
words = texts.filter(bool)
anything = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 9) | texts,
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.sampled_from(["type", "role", "content", "call_id", "output", "items", "text"]), inner)
    ),
    max_leaves=10,
)
kinds = some.sampled_from(["message", "function_call", "function_call_output", "reasoning", "input_text"])


@given(some.lists(some.fixed_dictionaries({"type": kinds}, optional={"role": some.just("user"), "content": anything})
                  | anything, max_size=4))  # fmt: skip
def test_whatever_is_sent_is_read_or_refused_with_the_place(given: list[Any]) -> None:
    try:
        made = addition(body({"items": given}), NONE)
    except Malformed as refused:
        assert refused.param is not None and refused.param.startswith("items[")
        return
    for each in made:
        read_message(each.wire, 0)


@some.composite
def lawful(draw: Any) -> list[dict[str, Any]]:
    """Items that a conversation may hold, as they are told of it."""
    found: list[dict[str, Any]] = []
    for number in range(draw(some.integers(0, 4))):
        found.append({"role": draw(some.sampled_from(["user", "developer"])), "content": draw(words)})
        if draw(some.booleans()):
            calls = [call(f"c{number}_{place}") for place in range(draw(some.integers(0, 2)))]
            found += [{"role": "assistant", "content": draw(words)}, *calls]
            found += [result(each["call_id"], draw(texts)) for each in calls]
    return found


@given(lawful())
def test_items_that_are_put_are_told_again_as_they_were(given: list[dict[str, Any]]) -> None:
    told: list[dict[str, Any]] = []
    for place, made in enumerate(addition(body({"items": given}), NONE)):
        kept = read_message(made.wire, place)
        told += items(f"msg_{place:04}", "completed", 1, (Part(role=kept.role, blocks=kept.blocks),))
    assert len({item["id"] for item in told}) == len(told) == len(given)
    for item, said in zip(told, given, strict=True):
        if "role" in said:
            assert (item["role"], [part["text"] for part in item["content"]]) == (said["role"], [said["content"]])
        else:
            assert {name: item[name] for name in said} == said
