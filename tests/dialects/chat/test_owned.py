"""How a request names a conversation that the gateway keeps, the whole request it stands for, an answer told again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.errors import Malformed
from proxy.dialects.chat.owned import (
    INTERJECT,
    ONCE,
    REFERENCE,
    Told,
    interjects,
    once,
    reference,
    told_again,
    whole_body,
)

CALL: dict[str, Any] = {"id": "g1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}


def a_told(**message: Any) -> Told:
    wire = json.dumps({"role": "assistant", **message}).encode()
    return Told(wire=wire, finish="stop", request="req_1", model="fast")


@pytest.mark.parametrize(
    ("member", "header", "named"),
    [
        (None, None, None),
        (b"null", None, None),
        (b'"conv_1"', None, "conv_1"),
        (b'{"id":"conv_1","more":2}', None, "conv_1"),
        (None, "conv_1", "conv_1"),
        (None, "", None),
        (b'"conv_1"', "conv_1", "conv_1"),
        (b"null", "conv_1", "conv_1"),
    ],
)
def test_a_conversation_is_named_by_the_member_or_by_the_header(
    member: bytes | None, header: str | None, named: str | None
) -> None:
    fields = {} if member is None else {"conversation": member}
    assert reference(fields, {} if header is None else {REFERENCE: header}) == named


@pytest.mark.parametrize("member", [b"7", b"[]", b"{}", b'""', b'"' + b"c" * 129 + b'"', b'"\xff"'])
def test_what_is_no_id_is_refused(member: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        reference({"conversation": member}, {})
    assert refused.value.param == "conversation"


def test_two_that_differ_are_refused() -> None:
    with pytest.raises(Malformed):
        reference({"conversation": b'"conv_1"'}, {REFERENCE: "conv_2"})


def test_a_message_goes_into_a_running_turn_only_where_the_header_says_so() -> None:
    assert not interjects({})
    assert [interjects({INTERJECT: value}) for value in ("true", " TRUE ", "1", "false", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(Malformed):
        interjects({INTERJECT: "perhaps"})


def test_a_key_has_its_bound() -> None:
    assert (once({}), once({ONCE: "k"})) == ("", "k")
    with pytest.raises(Malformed):
        once({ONCE: "k" * 257})


def test_the_whole_request_has_all_messages_and_every_other_member_as_it_came() -> None:
    fields = {"model": b'"fast"', "conversation": b'"conv_1"', "messages": b"[9]", "x\n": b'{ "a": 1.50 }'}
    assert whole_body(fields, [b"1", b"2"]) == rb'{"model":"fast","messages":[1,2],"x\n":{ "a": 1.50 }}'


def test_an_answer_told_again_names_the_request_that_it_was_made_for_and_costs_nothing() -> None:
    body, rest = told_again(a_told(content="Well."), "chatcmpl-1", 7.9, stream=False, usage=False)
    said = json.loads(body)
    assert rest == ()
    assert said["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Well.",
        "weirgate": {"answered": "req_1"},
    }
    assert (said["created"], said["usage"]["total_tokens"]) == (7, 0)


@pytest.mark.parametrize("usage", [False, True])
def test_its_stream_numbers_the_calls_and_ends_like_any_other(usage: bool) -> None:
    told = a_told(content=None, tool_calls=[CALL, CALL])
    body, rest = told_again(told, "chatcmpl-1", 7.0, stream=True, usage=usage)
    assert (body, rest[-1]) == (b"", b"data: [DONE]\n\n")
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in rest[:-1]]
    assert [call["index"] for call in chunks[0]["choices"][0]["delta"]["tool_calls"]] == [0, 1]
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"
    assert len(chunks) == (3 if usage else 2)
