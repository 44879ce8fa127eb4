"""A chat message is read leniently where clients differ and refused by name where it means nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import (
    Approval,
    Block,
    Clarification,
    CompactionBlock,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.errors import Malformed
from proxy.dialects.chat.messages import LEGACY_CALL, read_message, write_message
from tests import data

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(32)).decode()
FUNCTION = {"name": "f", "arguments": "{}"}


def read(value: Any, index: int = 0) -> Message:
    return read_message(json.dumps(value).encode(), index)


def refusal(wire: bytes | dict[str, Any], index: int = 3) -> tuple[str, str | None]:
    with pytest.raises(Malformed) as caught:
        read_message(wire if isinstance(wire, bytes) else json.dumps(wire).encode(), index)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


def test_a_message_keeps_its_bytes() -> None:
    wire = b'{ "role":"user",\n"content" : "hi", "x": [1.50] }'
    found = read_message(wire, 0)
    assert found.wire is wire
    assert write_message(found) is wire


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_every_role_of_the_api_is_known(role: str) -> None:
    assert read({"role": role, "content": "a", "tool_call_id": "c"}).role == role


@pytest.mark.parametrize("role", ["model", "", "User", "\u0000"])
def test_any_other_role_is_refused(role: str) -> None:
    assert refusal({"role": role, "content": "a"}) == ("invalid_messages", "messages[3].role")


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}], [{"text": "hi"}]])
def test_a_string_and_a_list_of_one_part_are_the_same(content: Any) -> None:
    found = read({"role": "user", "content": content})
    assert found.blocks == (Text(text="hi"),)
    assert found.digest == read({"role": "user", "content": "hi"}).digest


@pytest.mark.parametrize("more", [{}, {"content": None}, {"content": ""}, {"content": []}, {"refusal": None}])
def test_no_content_has_many_forms(more: dict[str, Any]) -> None:
    found = read({"role": "assistant", "tool_calls": [{"id": "c", "function": FUNCTION}], **more})
    assert found.blocks == (ToolCall(id="c", name="f", arguments="{}"),)


def test_parts_keep_their_order_and_media_their_bytes() -> None:
    image = '{"type":"image_url","image_url":{"url":"' + PNG + '","detail":"low"}}'
    wire = '{"role":"user","content":[{"type":"text","text":"a"},' + image + ',{"type":"text","text":"b"}]}'
    first, second, third = read_message(wire.encode(), 0).blocks
    assert (first, third) == (Text(text="a"), Text(text="b"))
    assert isinstance(second, Text)
    (media,) = second.media
    assert (media.kind, media.detail, media.wire) == ("image", "low", image.encode())


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": PNG}, "image"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a"}}, "file"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "file"),
        ({"type": "thinking", "thinking": "hm"}, "file"),
    ],
)
def test_every_kind_of_part_has_an_identity_and_a_size(part: dict[str, Any], kind: str) -> None:
    (block,) = read({"role": "user", "content": [part]}).blocks
    assert isinstance(block, Text)
    (media,) = block.media
    assert media.kind == kind
    assert media.digest
    assert media.size > 0
    assert json.loads(media.wire) == part
    other = json.loads(json.dumps(part).replace("U", "V").replace("P", "Q").replace("x", "y").replace("hm", "oh"))
    if other != part:
        assert read({"role": "user", "content": [other]}).digest != read({"role": "user", "content": [part]}).digest


def test_a_refusal_is_what_was_said() -> None:
    assert read({"role": "assistant", "refusal": "no"}).blocks == (Text(text="no"),)
    assert read({"role": "assistant", "content": "yes", "refusal": "no"}).blocks == (Text(text="yes"),)
    part = read({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})
    assert part.blocks == (Text(text="no"),)


def test_reasoning_is_read_and_is_no_part_of_the_identity() -> None:
    with_it = read({"role": "assistant", "reasoning_content": "hm", "content": "a"})
    assert with_it.blocks == (Reasoning(text="hm"), Text(text="a"))
    assert with_it.digest == read({"role": "assistant", "content": "a"}).digest


def test_a_tool_message_is_one_result() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image_url", "image_url": PNG}]
    (result,) = read({"role": "tool", "tool_call_id": "c", "content": parts}).blocks
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.text, len(result.media)) == ("c", "a\nb", 1)
    assert read({"role": "tool", "tool_call_id": "c"}).blocks == (ToolResult(call_id="c", text=""),)


@pytest.mark.parametrize("missing", [{}, {"tool_call_id": ""}, {"tool_call_id": None}])
def test_a_tool_message_names_its_call(missing: dict[str, Any]) -> None:
    found = refusal({"role": "tool", "content": "x", **missing})
    assert found == ("missing_required_parameter", "messages[3].tool_call_id")


def test_the_old_function_api_is_paired_by_one_id() -> None:
    call = read({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    result = read({"role": "function", "name": "f", "content": "4"})
    assert call.calls[0].id == LEGACY_CALL == result.results[0].call_id
    assert result.name == "f"


def test_calls_of_all_kinds_are_read() -> None:
    found = read(
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                {"id": "b", "type": "custom", "custom": {"name": "g", "input": "free text"}},
                {"function": {"name": "h", "arguments": {"y": "é"}}},
                {"id": "d", "function": {"name": "i", "arguments": None}},
            ],
        }
    )
    assert found.calls == (
        ToolCall(id="a", name="f", arguments='{"x": 1}'),
        ToolCall(id="b", name="g", arguments="free text"),
        ToolCall(id="", name="h", arguments='{"y": "é"}'),
        ToolCall(id="d", name="i", arguments=""),
    )


@pytest.mark.parametrize("call", [{"id": "a"}, {"id": "a", "function": {}}, {"function": {"name": ""}}])
def test_a_call_needs_a_name(call: dict[str, Any]) -> None:
    wire = {"role": "assistant", "tool_calls": [{"id": "x", "function": FUNCTION}, call]}
    assert refusal(wire) == ("missing_required_parameter", "messages[3].tool_calls[1]")


@pytest.mark.parametrize(
    ("wire", "param"),
    [
        ({"content": "a"}, "messages[3]"),
        ({"role": 1}, "messages[3]"),
        ({"role": "user", "content": 7}, "messages[3]"),
        ({"role": "user", "content": {"text": "a"}}, "messages[3]"),
        ({"role": "assistant", "tool_calls": {}}, "messages[3]"),
        ({"role": "user", "name": ["secret-name"]}, "messages[3]"),
        ({"role": "user", "content": ["secret-text"]}, "messages[3].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, None]}, "messages[3].content[1]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[3].content[0]"),
    ],
)
def test_a_wrong_type_is_named_without_its_content(wire: dict[str, Any], param: str) -> None:
    with pytest.raises(Malformed) as caught:
        read(wire, 3)
    assert (caught.value.code, caught.value.param) == ("invalid_type", param)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("wire", [b"7", b'"a"', b"[]", b"null"])
def test_a_message_is_an_object(wire: bytes) -> None:
    assert refusal(wire) == ("invalid_type", "messages[3]")


@pytest.mark.parametrize(
    "wire",
    [
        b'{"role":"user","role":"system","content":"a"}',
        rb'{"role":"user","\u0072ole":"system","content":"a"}',
        b'{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}',
        b'{"role":"user","content":"a","x":' + b"[" * 100 + b"]" * 100 + b"}",
        rb'{"role":"user","content":"\x"}',
        b'{"role":"user","content":"a","x":NaN}',
        b'{"role":"user","content":"a","x":' + b"9" * 5000 + b"}",
        b'{"role":"user"',
        b'{"role":"user","content":' + b"[" * 50_000,
    ],
)
def test_what_another_reader_could_read_otherwise_is_refused(wire: bytes) -> None:
    assert refusal(wire) == ("invalid_json", "messages[3]")


def test_brackets_and_quotes_in_a_text_are_no_structure() -> None:
    text = '{"a":1,"a":2}' + "[" * 100
    assert read({"role": "user", "content": text}).text == text


@pytest.mark.parametrize("content", [r'"a \ud83d b"', r'[{"type":"text","text":"a \ud83d b"}]'])
def test_half_a_character_survives_on_the_wire_and_is_replaced_in_the_identity(content: str) -> None:
    wire = b'{"role":"user","content":' + content.encode() + b"}"
    found = read_message(wire, 0)
    assert found.wire is wire
    assert found.text == "a \ufffd b"
    assert found.digest == read({"role": "user", "content": "a \ufffd b"}).digest


def test_half_a_character_hides_no_other_fault() -> None:
    assert refusal(rb'{"role":"user","content":"\ud83d","x":"\x"}') == ("invalid_json", "messages[3]")
    assert refusal(rb'{"role":"nobody","content":"\ud83d"}') == ("invalid_messages", "messages[3].role")
    assert refusal(rb'{"role":"user","\ud83d":1,"\ude00":2}') == ("invalid_json", "messages[3]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(st.sampled_from('ab\ud83d\ude00"é'), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("type text image_url url file function name arguments id custom input detail".split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    value=st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "function"])},
        optional={
            name: JSON | st.lists(JSON, max_size=3)
            for name in "content name tool_calls tool_call_id function_call reasoning_content refusal x".split()
        },
    )
)
def test_any_message_is_read_or_refused_and_keeps_its_bytes(value: dict[str, Any]) -> None:
    wire = json.dumps(value).encode()
    try:
        found = read_message(wire, 0)
    except Malformed:
        return
    assert write_message(found) == wire
    again = msgspec.json.decode(write_message(message(found.role, found.blocks, name=found.name)))
    assert again["role"] == value["role"]


TEXTS = st.text("ab \n", max_size=5)
OWN: st.SearchStrategy[tuple[str, tuple[Block, ...]]] = st.one_of(
    st.tuples(st.just("user"), TEXTS.map(lambda text: (Text(text=text),))),
    st.tuples(
        st.just("assistant"),
        st.builds(
            lambda reasoning, text, calls: (
                *([Reasoning(text=reasoning)] if reasoning else []),
                *([Text(text=text)] if text else []),
                *(ToolCall(id=f"c{place}", name="f", arguments='{"a":1}') for place in range(calls)),
            ),
            TEXTS,
            TEXTS,
            st.integers(0, 3),
        ),
    ),
    st.tuples(st.just("tool"), TEXTS.map(lambda text: (ToolResult(call_id="c", text=text),))),
)


@given(own=OWN)
def test_a_message_of_ours_is_read_back_as_the_same_message(own: tuple[Any, tuple[Block, ...]]) -> None:
    made = message(own[0], own[1])
    found = read_message(write_message(made), 0)
    assert found.digest == made.digest
    assert found.calls == made.calls


def test_media_are_written_as_they_came() -> None:
    part = b'{"type":"image_url",  "image_url":{"url":"u"}}'
    media = Media(kind="image", digest="d", size=1, wire=part)
    made = message("user", (Text(text="look", media=(media,)), Text(text="", media=(media,))))
    wire = write_message(made)
    assert wire.count(part) == 2
    assert [each["type"] for each in json.loads(wire)["content"]] == ["text", "image_url", "image_url"]
    result = message("tool", (ToolResult(call_id="c", text="", media=(media,)),), name="dropped")
    assert json.loads(write_message(result)) == {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "image_url", "image_url": {"url": "u"}}],
    }


def test_a_result_of_the_old_api_is_written_without_the_id_it_never_had() -> None:
    made = message("function", (ToolResult(call_id=LEGACY_CALL, text="4"),), name="f")
    assert json.loads(write_message(made)) == {"role": "function", "name": "f", "content": "4"}


def test_calls_of_ours_have_arguments_that_are_json_and_no_empty_text() -> None:
    made = message("assistant", (ToolCall(id="c", name="f", arguments=""),), name="n")
    assert json.loads(write_message(made)) == {
        "role": "assistant",
        "name": "n",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    empty = message("assistant", ())
    assert json.loads(write_message(empty)) == {"role": "assistant", "content": ""}


def test_blocks_without_a_form_in_this_dialect_are_told_as_text() -> None:
    made = message(
        "assistant",
        (
            Clarification(id="q", question="which?"),
            Approval(id="a", action="rm", reason="old"),
            CompactionBlock(notes="notes", trigger="AUTO"),
        ),
    )
    assert json.loads(write_message(made))["content"] == "which?\n\nrm\nold\n\nnotes"


@pytest.mark.data
def test_every_recorded_message_is_read_and_forwarded_as_it_is() -> None:
    count = 0
    for conversation in data.conversations():
        for index, value in enumerate(conversation.messages[:40]):
            if value.get("role") not in ("system", "developer", "user", "assistant", "tool"):
                continue
            wire = json.dumps(value).encode()
            try:
                found = read_message(wire, index)
            except Malformed as error:
                assert conversation.row.get("broken"), (conversation.id, index, error.message)
                continue
            assert write_message(found) is wire
            count += 1
    print(f"{count} recorded messages read")
    assert count > 1000
