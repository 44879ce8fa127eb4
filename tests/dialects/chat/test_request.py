"""A chat request is opened one level deep, and what goes upstream differs only where the gateway meant it to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import Message, Text
from proxy.core.errors import Malformed
from proxy.core.policy import Mode
from proxy.core.steps import Call, Caller, Prompt, Report
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import Bounds, decode_call, decoding, encode_prompt
from proxy.dialects.strict import check_unique

CALLER = Caller(tenant="t", key="k")
USER = {"role": "user", "content": "hi"}


def decode(
    body: bytes | dict[str, Any], headers: Mapping[str, str] | None = None, bounds: Bounds | None = None
) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_call(raw, CALLER, read_message, headers or {}, bounds)


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **more}


def prompt(call: Call, **changes: Any) -> Prompt:
    report = Report(conversation="conv_1", tokens=1, window=None)
    plain = Prompt(
        messages=call.messages, untouched=True, max_output=call.max_output, estimated=1, shape=b"", report=report
    )
    return msgspec.structs.replace(plain, **changes)


def sound(body: bytes) -> dict[str, Any]:
    """The value of a body that names nothing twice."""
    check_unique(body)
    value: dict[str, Any] = json.loads(body)
    return value


def refusal(body: bytes | dict[str, Any], headers: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    with pytest.raises(Malformed) as caught:
        decode(body, headers)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


# -- decoding ----------------------------------------------------------------------------------------------------------


def test_a_long_history_is_read_in_short_steps_and_a_short_one_in_one() -> None:
    """Between two steps others are served: a step holds the loop for as long as some tens of kilobytes take."""
    sizes: list[int] = []

    def read(wire: bytes, index: int) -> Message:
        sizes[-1] += len(wire)
        return read_message(wire, index)

    def steps(body: dict[str, Any]) -> list[int]:
        sizes[:] = [0]
        for _ in decoding(json.dumps(body).encode(), CALLER, read, {}):
            sizes.append(0)
        return sizes

    many = [{"role": "user", "content": "word " * 400}] * 300
    assert max(steps(chat(messages=many))) < 100_000
    assert sizes[0] == 0, "a large body is opened in a step of its own"
    assert sum(sizes) > 600_000 and min(sizes[1:]) > 0
    tiny = steps(chat(messages=[USER] * 1000))
    assert len(tiny) > 10
    assert len(steps(chat(messages=many[:10]))) == 1


def test_a_whole_request_is_understood() -> None:
    call = decode(
        chat(
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=70,
            tools=[{"type": "function", "function": {"name": "f"}}],
            n=2,
            store=False,
            user="u",
        )
    )
    assert (call.model, call.stream, call.include_usage, call.choices, call.store) == ("m", True, True, 2, False)
    assert (call.max_output, call.output_field) == (70, "max_completion_tokens")
    assert call.caller == Caller(tenant="t", key="k", end_user="u")
    assert json.loads(call.tools) == [{"type": "function", "function": {"name": "f"}}]
    assert call.tools_tokens > 5
    assert call.messages[0].text == "hi"


def test_what_is_left_out_has_the_apis_default() -> None:
    for call in (decode(chat()), decode(chat(stream=None, stream_options=None, max_tokens=None, n=None, store=None))):
        assert (call.stream, call.include_usage, call.choices, call.store) == (False, False, 1, True)
        assert (call.max_output, call.output_field, call.tools, call.tools_tokens) == (None, "max_tokens", b"", 0)
        assert (call.label, call.mode, call.caller) == (None, None, CALLER)


def test_the_old_functions_count_as_tools() -> None:
    call = decode(chat(functions=[{"name": "f"}], tools=[]))
    assert call.tools == b'[][{"name": "f"}]'
    call = decode(chat(functions=[{"name": "f"}], tools=None))
    assert call.tools == b'[{"name": "f"}]'


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 5}, (5, "max_tokens")),
        ({"max_completion_tokens": 6}, (6, "max_completion_tokens")),
        ({"max_tokens": 5, "max_completion_tokens": 6}, (6, "max_completion_tokens")),
        ({"max_tokens": 5, "max_completion_tokens": None}, (5, "max_tokens")),
    ],
)
def test_the_output_limit_has_two_names(fields: dict[str, Any], named: tuple[int, str]) -> None:
    call = decode(chat(**fields))
    assert (call.max_output, call.output_field) == named


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": [USER]}, "missing_required_parameter", "model"),
        (chat(model=""), "missing_required_parameter", "model"),
        (chat(model=None), "missing_required_parameter", "model"),
        (chat(model=7), "invalid_type", "model"),
        ({"model": "m"}, "missing_required_parameter", "messages"),
        (chat(messages=[]), "invalid_messages", "messages"),
        (chat(messages=None), "invalid_messages", "messages"),
        (chat(messages={}), "invalid_type", "messages"),
        (chat(messages="hi"), "invalid_type", "messages"),
        (chat(messages=[USER, 7]), "invalid_type", "messages[1]"),
        (chat(messages=[USER, {"role": "x"}]), "invalid_messages", "messages[1].role"),
        (chat(tools={}), "invalid_type", "tools"),
        (chat(tools=[{}] * 129), "out_of_range", "tools"),
        (chat(stream="yes"), "invalid_type", "stream"),
        (chat(stream_options=[]), "invalid_type", "stream_options"),
        (chat(max_tokens=0), "out_of_range", "max_tokens"),
        (chat(max_tokens=1 << 40), "out_of_range", "max_tokens"),
        (chat(max_tokens=1.5), "invalid_type", "max_tokens"),
        (chat(max_completion_tokens=-1), "out_of_range", "max_completion_tokens"),
        (chat(n=0), "out_of_range", "n"),
        (chat(n=9), "out_of_range", "n"),
        (chat(user=7), "invalid_type", "user"),
        (chat(prompt_cache_key=7), "invalid_type", "prompt_cache_key"),
        (chat(store="no"), "invalid_type", "store"),
        (chat(api_base="http://x"), "unknown_parameter", "api_base"),
        (chat(extra_body={"headers": {}}), "unknown_parameter", "headers"),
        (b'{"model":"m","messages":[{"role":"user","content":"a"}],"model":"n"}', "invalid_json", None),
        (b'{"model":"m","messages":[{"role":"user","content":"a"}]}x', "invalid_json", None),
        (b"", "invalid_json", None),
    ],
)
def test_each_fault_is_named(body: bytes | dict[str, Any], code: str, param: str | None) -> None:
    assert refusal(body) == (code, param)


def test_blanks_around_the_body_are_no_fault() -> None:
    assert decode(b' \n{"model":"m","messages":[{"role":"user","content":"a"}]}\r\n ').model == "m"


def test_the_bounds_are_those_that_were_given() -> None:
    bounds = Bounds(messages=2, tools=1, depth=4, choices=1)
    decode(chat(messages=[USER] * 2, tools=[{}], n=1), bounds=bounds)
    for body, code, param in (
        (chat(messages=[USER] * 3), "out_of_range", "messages"),
        (chat(tools=[{}] * 2), "out_of_range", "tools"),
        (chat(n=2), "out_of_range", "n"),
        (chat(x=[[[[[]]]]]), "invalid_json", "x"),
    ):
        with pytest.raises(Malformed) as caught:
            decode(body, bounds=bounds)
        assert (caught.value.code, caught.value.param) == (code, param)


def test_the_safety_identifier_is_the_end_user_before_user() -> None:
    assert decode(chat(user="u", safety_identifier="s")).caller.end_user == "s"
    assert decode(chat(user="")).caller.end_user is None


def test_two_long_names_that_begin_alike_are_two_end_users_and_two_conversations() -> None:
    """What is kept of a name keys an end user's state: cut off, one would be told what is another's."""
    users = [decode(chat(user="u" * 256 + last)).caller.end_user or "" for last in ("1", "2", "1", "\ud800")]
    labels = [decode(chat(), {"x-session-id": "z" * 200 + last}).label or "" for last in ("1", "2", "1")]
    for (one, other, again, *_), length in ((users, 256), (labels, 200)):
        assert one == again != other
        assert len(one) == len(other) == length
    assert decode(chat(user="u" * 256)).caller.end_user == "u" * 256


@pytest.mark.parametrize(
    ("headers", "body", "label"),
    [
        ({"x-session-id": "a", "session-id": "b"}, {"prompt_cache_key": "p"}, "a"),
        ({"session-id": "b", "thread-id": "c"}, {}, "b"),
        ({"thread-id": "c"}, {}, "c"),
        ({"session_id": "d"}, {}, "d"),
        ({"x-claude-code-session-id": "e"}, {}, "e"),
        ({"x-openwebui-chat-id": "f"}, {"metadata": {"session_id": "g"}}, "f"),
        ({"x-session-id": ""}, {"metadata": {"session_id": "g"}}, "g"),
        ({}, {"metadata": {"conversation_id": "h"}, "prompt_cache_key": "p"}, "h"),
        ({}, {"metadata": {"session_id": 7, "chat_id": "i"}}, "i"),
        ({}, {"metadata": {"x": "y"}, "prompt_cache_key": "p"}, "p"),
        ({}, {"metadata": [], "prompt_cache_key": "p"}, "p"),
        ({}, {"metadata": None}, None),
        ({}, {"prompt_cache_key": ""}, None),
        ({"x-session-id": "z" * 200}, {}, "z" * 200),
    ],
)
def test_a_label_is_found_in_the_order_of_the_design(
    headers: dict[str, str], body: dict[str, Any], label: str | None
) -> None:
    assert decode(chat(**body), headers).label == label


@pytest.mark.parametrize(
    ("headers", "body", "channel"),
    [
        ({}, {}, False),
        ({"x-weirgate-channel": "general"}, {}, True),
        ({"x-weirgate-channel": ""}, {}, False),
        ({"x-weirgate-channel": "  "}, {"metadata": {"channel": "general"}}, True),
        ({"x-session-id": "a"}, {"metadata": {"channel": "general"}}, True),
        ({}, b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":{"ch\\u0061nnel":"g"}}', True),
        ({}, {"metadata": {"channel": " "}}, False),
        ({}, {"metadata": {"channel": 7}}, False),
        ({}, {"metadata": {"channel": None}}, False),
        ({}, {"metadata": {"name": "channel"}}, False),
        ({}, {"metadata": ["channel"]}, False),
        ({}, {"metadata": None, "channel": "general"}, False),
    ],
)
def test_a_conversation_is_a_channels_where_a_header_or_the_metadata_names_one(
    headers: dict[str, str], body: dict[str, Any] | bytes, channel: bool
) -> None:
    assert decode(body if isinstance(body, bytes) else chat(**body), headers).channel is channel


def test_the_mode_is_a_header() -> None:
    assert decode(chat(), {"x-weirgate-mode": " Observe "}).mode is Mode.OBSERVE
    assert refusal(chat(), {"x-weirgate-mode": "fast"}) == ("out_of_range", "x-weirgate-mode")


@given(st.binary(max_size=60) | st.text('{}[]":,\\abmodelsg', max_size=60).map(str.encode))
def test_no_body_does_anything_but_be_read_or_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(body)


# -- encoding ----------------------------------------------------------------------------------------------------------


def test_a_request_that_nothing_changed_goes_out_as_the_same_bytes() -> None:
    message = b'{"role":"user","content":"a"}'
    call = decode(b'{ "stream":true, "stream_options":{"include_usage":true}, "model":"m","messages":[%b] }' % message)
    assert encode_prompt(call, prompt(call), "m") is call.body


def test_another_model_name_changes_nothing_else() -> None:
    call = decode(b'{"seed":1.0,"model":"m","messages":[ {"role":"user", "content":"a"} ],"x":{"y" : 1e3}}')
    assert encode_prompt(call, prompt(call), 'n"') == (
        b'{"seed":1.0,"model":"n\\"","messages":[ {"role":"user", "content":"a"} ],"x":{"y" : 1e3}}'
    )


@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": False}, {"include_obfuscation": False}])
def test_a_stream_asks_for_its_usage(options: Any) -> None:
    call = decode(chat(stream=True) if options is ... else chat(stream_options=options, stream=True))
    sent = sound(encode_prompt(call, prompt(call), "m"))
    kept = options if isinstance(options, dict) else {}
    assert sent["stream_options"] == {**kept, "include_usage": True}
    assert {**sent, "stream_options": 0} == {**json.loads(call.body), "stream_options": 0}


def test_an_answer_in_one_piece_is_not_asked_for_it() -> None:
    call = decode(chat(stream=False))
    assert encode_prompt(call, prompt(call), "m") is call.body


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_lowered_output_takes_the_place_of_the_clients(field: str) -> None:
    call = decode(chat(**{field: 4000, "z": 1}))
    sent = sound(encode_prompt(call, prompt(call, max_output=64), "m"))
    assert sent == {**json.loads(call.body), field: 64}


def test_an_output_limit_that_is_taken_away_leaves_none() -> None:
    call = decode(chat(max_tokens=4000))
    assert "max_tokens" not in json.loads(encode_prompt(call, prompt(call, max_output=None), "m"))


def test_told_messages_keep_their_own_bytes() -> None:
    kept = b'{"role":"user", "content":"b", "cache_control":{"type":"ephemeral"}}'
    call = decode(b'{"model":"m","messages":[{"role":"user","content":"a"},' + kept + b'],"x":1}')
    notes = message("user", (Text(text="notes"),))
    sent = encode_prompt(call, prompt(call, messages=(notes, call.messages[1]), untouched=False), "m")
    assert kept in sent
    assert json.loads(sent)["messages"] == [{"role": "user", "content": "notes"}, json.loads(kept)]
    assert json.loads(sent)["x"] == 1


def test_half_a_character_goes_upstream_as_it_came() -> None:
    call = decode(rb'{"model":"m","messages":[{"role":"user","content":"\ud83d"}],"x":"\ude00"}')
    assert call.messages[0].text == "\ufffd"
    sent = encode_prompt(call, prompt(call), "n")
    assert rb'"content":"\ud83d"' in sent
    assert rb'"x":"\ude00"' in sent


EXTRA = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda name: not name.startswith(("api", "h", "p"))),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-99, 99)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(
    extra=EXTRA,
    texts=st.lists(st.text(max_size=8), min_size=1, max_size=4),
    spaced=st.booleans(),
    ascii_only=st.booleans(),
    other=st.booleans(),
    apart=st.booleans(),
)
def test_decoding_and_encoding_an_untouched_call_is_the_same_json(
    extra: dict[str, Any], texts: list[str], spaced: bool, ascii_only: bool, other: bool, apart: bool
) -> None:
    known = {"n", "user", "store", "tools", "functions", "stream", "metadata", "model", "messages", "callbacks"}
    extra = {name: value for name, value in extra.items() if name not in known}
    value = {**extra, **chat(messages=[{"role": "user", "content": text} for text in texts])}
    separators = (", ", ": ") if spaced else (",", ":")
    raw = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    call = decode(raw)
    sent = encode_prompt(call, prompt(call, untouched=not apart), "n" if other else "m")
    assert sound(sent) == {**value, "model": "n" if other else "m"}
