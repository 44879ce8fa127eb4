"""Answers of every provider are read leniently, passed on as they came, and our own frames conform."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from proxy.core.conversation import Reasoning, Text, ToolCall
from proxy.core.errors import InvalidReply
from proxy.core.events import Broke, CallDelta, Counted, Ended, Event, Remark, Said
from proxy.core.relay import Relay
from proxy.core.steps import Reply
from proxy.core.usage import Usage
from proxy.dialects.chat.reply import Frames, done_frame, is_error, read_answer, read_usage
from proxy.dialects.sse import SseEvent, SseReader, frame
from tests import data
from tests.clients import recorded
from tests.replies import chat_chunks, chat_reply, tool_call, usage


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def event(value: Any) -> SseEvent:
    raw = value if isinstance(value, bytes) else body(value)
    return SseEvent(raw=frame(raw), data=raw)


def heard(value: Any) -> Event:
    return Frames("m").read(event(value))


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "i",
        "created": 5,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


# -- whole answers -----------------------------------------------------------------------------------------------------


def test_a_whole_answer_is_read() -> None:
    value = chat_reply("hi", calls=[tool_call("c", "f", {"a": 1})], usage=usage(9, 3, cached=4))
    value["choices"][0]["message"]["reasoning_content"] = "hm"
    reply = read_answer(body(value))
    assert reply.message is not None
    assert reply.message.blocks == (
        Reasoning(text="hm"),
        Text(text="hi"),
        ToolCall(id="c", name="f", arguments='{"a": 1}'),
    )
    assert (reply.finish, reply.usage) == ("tool_calls", Usage(input=9, output=3, cached=4))


def test_several_choices_have_no_message_of_their_own() -> None:
    value = chat_reply("hi")
    value["choices"] *= 2
    assert read_answer(body(value)) == Reply(message=None, finish="stop", usage=None)


def test_an_answer_that_says_nothing_but_ended_is_an_answer() -> None:
    value = {"choices": [{"message": None, "finish_reason": "length"}]}
    assert read_answer(body(value)) == Reply(message=None, finish="length", usage=None)
    value = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}
    assert read_answer(body(value)).message is None


def test_an_answer_without_a_finish_is_taken_where_it_says_something() -> None:
    reply = read_answer(body({"choices": [{"message": {"content": "hi"}}]}))
    assert reply.message is not None
    assert reply.finish is None


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": ["a"]},
        {"choices": [{"message": {"content": ""}}]},
        {"choices": [{}]},
        [],
        b"<html>",
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"choices":[{"message":{"content":"a"}',
    ],
)
def test_what_is_no_answer_is_the_providers_fault(value: Any) -> None:
    with pytest.raises(InvalidReply) as caught:
        read_answer(value if isinstance(value, bytes) else body(value))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    ("said", "blocks"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 7]}, (Text(text="ab"),)),
        ({"content": None, "refusal": "no"}, (Text(text="no"),)),
        ({"content": 7, "reasoning": "hm"}, (Reasoning(text="hm"),)),
        (
            {"function_call": {"name": "f", "arguments": "{}"}},
            (ToolCall(id="function_call", name="f", arguments="{}"),),
        ),
        (
            {"tool_calls": [{"id": "c", "custom": {"name": "g", "input": "x"}}]},
            (ToolCall(id="c", name="g", arguments="x"),),
        ),
        (
            {"tool_calls": [{"id": "c", "function": {"name": "g", "arguments": {"a": 1}}}, "x"]},
            (ToolCall(id="c", name="g", arguments='{"a":1}'),),
        ),
        ({"tool_calls": [{"id": 7, "function": "f"}]}, (ToolCall(id="", name="", arguments=""),)),
    ],
)
def test_every_shape_of_a_message_is_read(said: Any, blocks: tuple[Any, ...]) -> None:
    reply = read_answer(body({"choices": [{"message": said, "finish_reason": "stop"}]}))
    assert reply.message is not None
    assert reply.message.blocks == blocks


def test_an_error_with_status_200_is_told_from_an_answer() -> None:
    assert is_error(b'{"error":{"message":"x"}}')
    assert is_error(b'{"error":"x","choices":[]}')
    for sound in (
        b'{"error":null,"choices":[1]}',
        b'{"error":{"a":1},"choices":[1]}',
        b"{}",
        b"x",
        b"[1]",
        b"[" * 99999,
    ):
        assert not is_error(sound)


@pytest.mark.parametrize("value", [{"error": {"message": "x"}}, {"error": "x", "choices": []}])
def test_an_error_comes_back_as_it_was_sent_in_place_of_an_answer(value: Any) -> None:
    assert read_answer(body(value)) == Broke(status=200, body=body(value))


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (usage(9, 3, cached=4), Usage(input=9, output=3, cached=4)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 6}, Usage(input=9, cached=6)),
        (
            {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
            Usage(input=16, output=3, cached=5, cache_write=2),
        ),
        (
            {"prompt_tokens": 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
            Usage(input=9, cached=5, cache_write=2),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(input=9, output=4, cached=1, cache_write=2, reasoning=3),
        ),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 1},
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(input=9, cached=1, reasoning=2),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None, "completion_tokens_details": "x"}, Usage(input=9)),
        ({"prompt_tokens": 9.0, "completion_tokens": None}, Usage(input=9)),
        ({"prompt_tokens": -5, "completion_tokens": 3}, Usage(output=3)),
        ({"prompt_tokens": 1 << 50, "completion_tokens": True}, None),
        ({"prompt_tokens": "9"}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({}, None),
        (None, None),
        ([1], None),
    ],
)
def test_the_usage_of_every_provider_is_read_and_nonsense_is_none(value: Any, expected: Usage | None) -> None:
    assert read_usage(value) == expected


# -- frames ------------------------------------------------------------------------------------------------------------


def test_a_comment_and_the_end_mark_are_known() -> None:
    assert Frames("m").read(SseEvent(raw=b": x\n\n", data=None)) == Remark(raw=b": x\n\n")
    assert heard(b"[DONE]") == Ended()


@pytest.mark.parametrize(
    "delta",
    [{"role": "assistant"}, {"role": "assistant", "content": ""}, {}, None, "x", {"content": None}, {"tool_calls": []}],
)
def test_a_frame_that_no_reader_would_see_is_blank(delta: Any) -> None:
    found = heard(chunk(delta))
    assert isinstance(found, Said)
    assert found.blank


@pytest.mark.parametrize(
    ("delta", "seen"),
    [
        ({"content": "a"}, {"text": "a"}),
        ({"refusal": "no"}, {"text": "no"}),
        ({"content": [{"type": "text", "text": "a"}]}, {"text": "a"}),
        ({"reasoning_content": "h"}, {"reasoning": "h"}),
        ({"reasoning": "h"}, {"reasoning": "h"}),
        ({"audio": {"data": "x"}}, {}),
        ({"images": [1]}, {}),
        ({"annotations": [1]}, {}),
        ({"function_call": {"name": "f"}}, {"calls": (CallDelta(index=0, id="function_call", name="f"),)}),
        (
            {"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f", "arguments": "{"}}]},
            {"calls": (CallDelta(index=1, id="c", name="f", arguments="{"),)},
        ),
        (
            {"tool_calls": [{"function": {}}, {"custom": {"input": "x"}}]},
            {"calls": (CallDelta(index=0), CallDelta(index=1, arguments="x"))},
        ),
    ],
)
def test_every_shape_of_a_delta_is_read(delta: Any, seen: dict[str, Any]) -> None:
    value = chunk(delta)
    assert heard(value) == Said(raw=frame(body(value)), **seen)


def test_the_finish_and_usage_of_a_frame_are_read() -> None:
    found = heard(chunk({}, "stop", usage=usage(3, 4)))
    assert isinstance(found, Said)
    assert (found.finish, found.usage, found.blank) == ("stop", Usage(input=3, output=4), False)


def test_a_frame_of_a_whole_message_is_read_like_a_delta() -> None:
    found = heard({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
    assert isinstance(found, Said)
    assert (found.text, found.finish) == ("a", "stop")


def test_further_choices_of_a_frame_are_told() -> None:
    value = {
        "choices": [
            {"index": 0, "delta": {}},
            {"index": 1, "delta": {"content": "a"}, "finish_reason": "stop"},
            {"delta": {}},
        ]
    }
    found = heard(value)
    assert isinstance(found, Said)
    assert (found.choice, found.others, found.blank) == (0, ((1, "stop"), (2, None)), False)
    assert heard({"choices": [{"index": 1, "delta": {}}, {"index": 0, "delta": {}}]}) == Said(
        raw=frame(body({"choices": [{"index": 1, "delta": {}}, {"index": 0, "delta": {}}]})),
        choice=1,
        others=((0, None),),
        blank=True,
    )


def test_a_frame_without_choices_is_usage_or_nothing() -> None:
    assert heard({"choices": [], "usage": usage(3, 4)}) == Counted(
        raw=frame(body({"choices": [], "usage": usage(3, 4)})), usage=Usage(input=3, output=4)
    )
    for value in ({"choices": []}, {"x": 1}, {"choices": [7], "error": None}):
        assert heard(value) == Remark(raw=frame(body(value)), told=True)
    assert heard({"choices": None, "usage": {}}) == Remark(raw=frame(body({"choices": None, "usage": {}})))


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"error": {"message": "x"}}, 200),
        ({"error": "x"}, 200),
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "503"}}, 503),
        ({"error": {"code": "rate_limit", "status": 429}}, 429),
        ({"error": {"code": 7}, "status_code": 500}, 500),
        ({"error": {"code": "²"}}, 200),
        ({"error": {"code": "4" * 5000}}, 200),
        ({"error": {"code": 600, "status": -400}}, 200),
        ({"error": {"code": "x"}, "choices": []}, 200),
        ({"error": {"code": 502}, "choices": [{"finish_reason": "error"}]}, 502),
        ({"error": {"code": 400}, "choices": [{"delta": {"content": ""}}]}, 400),
    ],
)
def test_an_error_inside_a_stream_breaks_it(value: dict[str, Any], status: int) -> None:
    assert heard(value) == Broke(status=status, body=body(value))


def test_an_error_member_beside_a_finished_choice_is_no_break() -> None:
    assert isinstance(heard(chunk({}, "stop", error={"code": 1})), Said)


@pytest.mark.parametrize("value", [b"x", b"[1]", b'"a"', b"", b"{", b"[" * 100_000])
def test_data_that_is_no_object_is_the_providers_fault(value: bytes) -> None:
    with pytest.raises(InvalidReply):
        heard(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 600) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "id index delta message content text tool_calls function custom name arguments input error code usage"
                " finish_reason reasoning function_call prompt_tokens prompt_tokens_details cached_tokens model".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
ODD = st.fixed_dictionaries(
    {}, optional={"choices": JSON | st.lists(JSON, max_size=3), "usage": JSON, "error": JSON, "id": JSON, "model": JSON}
)


@given(st.lists(ODD, max_size=4))
def test_whatever_a_provider_sends_is_read_or_its_fault(values: list[Any]) -> None:
    frames, relay = Frames("m"), Relay(include_usage=True)
    for value in values:
        relayed = relay.feed(frames.read(event(value)))
        assert all(frames.write(each) == event(value).raw for each in relayed)
    relay.reply()
    for value in values:
        try:
            read_answer(body(value))
        except InvalidReply:
            continue


# -- writing -----------------------------------------------------------------------------------------------------------


def test_an_event_that_came_is_written_as_its_bytes() -> None:
    frames = Frames("m")
    for each in (Said(raw=b"s"), Counted(raw=b"c", usage=Usage()), Remark(raw=b"r")):
        assert frames.write(each) == each.raw
    assert frames.write(Ended()) == frames.write(Broke(status=500, body=b"x")) == b""
    assert done_frame() == b"data: [DONE]\n\n"


def test_frames_of_ours_conform_and_continue_the_same_answer() -> None:
    frames = Frames("fallback")
    frames.read(event(chunk({"content": "a"})))
    made = [
        Said(raw=None, text="hi", reasoning="hm"),
        Said(raw=None, calls=(CallDelta(index=0, id="c", name="f"), CallDelta(index=0, arguments="{}"))),
        Said(raw=None, finish="tool_calls"),
        Counted(raw=None, usage=Usage(input=7, output=5, cached=2, reasoning=1)),
    ]
    state = ChatCompletionStreamState()
    for each in made:
        (read,) = SseReader().feed(frames.write(each))
        assert read.data is not None
        value = json.loads(read.data)
        assert (value["id"], value["created"], value["model"]) == ("i", 5, "m")
        state.handle_chunk(ChatCompletionChunk.model_validate(value))
    whole = state.get_final_completion()
    assert whole.choices[0].message.content == "hi"
    (call,) = whole.choices[0].message.tool_calls or ()
    assert (call.id, call.type, call.function.name, call.function.arguments) == ("c", "function", "f", "{}")
    assert whole.usage is not None
    assert (whole.usage.total_tokens, whole.usage.prompt_tokens) == (12, 7)
    assert frames.read(event(frames.write(made[0])[6:-2])) == Said(raw=frames.write(made[0]), text="hi", reasoning="hm")


def test_a_frame_of_ours_before_any_of_theirs_has_a_name_of_its_own() -> None:
    value = json.loads(Frames("m").write(Said(raw=None, text="a"))[6:])
    assert (value["id"], value["model"]) == ("chatcmpl-weirgate", "m")


# -- recorded answers --------------------------------------------------------------------------------------------------


def gathered(payloads: list[bytes]) -> Reply:
    frames, relay = Frames("m"), Relay(include_usage=True)
    for payload in payloads:
        relay.feed(frames.read(event(payload)))
    assert relay.complete
    return relay.reply()


def by_openai(payloads: list[bytes]) -> ChatCompletion:
    """What the OpenAI library accumulates; it insists on members that some providers leave out."""
    state = ChatCompletionStreamState()
    for payload in payloads:
        value = json.loads(payload)
        value["object"] = "chat.completion.chunk"
        for choice in value["choices"]:
            choice["delta"] = choice.get("delta") or {}
            for place, call in enumerate(choice["delta"].get("tool_calls") or ()):
                call.setdefault("index", place)
                call.setdefault("type", "function")
        state.handle_chunk(ChatCompletionChunk.model_validate(value))
    return state.current_completion_snapshot  # type: ignore[return-value]


@pytest.mark.data
def test_recorded_streams_are_gathered_as_the_openai_library_does() -> None:
    streams = recorded.streams()
    assert len(streams) >= 14
    for name, recording in streams.items():
        reply, whole = gathered(recording.payloads), by_openai(recording.payloads)
        (choice,) = whole.choices
        assert reply.message is not None, name
        text = "".join(block.text for block in reply.message.blocks if isinstance(block, Text))
        assert text == (choice.message.content or ""), name
        calls = [(call.id, call.name, call.arguments) for call in reply.message.calls]
        theirs = choice.message.tool_calls or []
        assert calls == [(each.id, each.function.name, each.function.arguments) for each in theirs], name
        assert reply.finish == choice.finish_reason, name
        if whole.usage is not None:
            assert reply.usage is not None, name
            assert (reply.usage.input, reply.usage.output) == (
                whole.usage.prompt_tokens,
                whole.usage.completion_tokens,
            ), name


@pytest.mark.data
def test_every_recorded_answer_is_read_without_a_fault_of_ours() -> None:
    whole = streamed = 0
    for answer in data.provider_streams():
        if answer.is_stream:
            frames = Frames("m")
            for payload in answer.payloads():
                try:
                    found = frames.read(event(payload))
                except InvalidReply:
                    assert not isinstance(json.loads(payload), dict)
                    continue
                assert frames.write(found) in (event(payload).raw, b"")
                streamed += 1
            continue
        value = json.loads(answer.body())
        choices = value.get("choices") if isinstance(value, dict) else None
        if choices and "message" in choices[0]:
            reply = read_answer(answer.body())
            assert reply.finish == choices[0]["finish_reason"]
            whole += 1
    print(f"{whole} whole answers, {streamed} frames")
    assert (whole > 5, streamed > 1000) == (True, True)


def test_the_builders_of_these_tests_are_read_like_the_real_thing() -> None:
    payloads = [body(each) for each in chat_chunks("hello there", calls=[tool_call("c", "f", "{}")], usage=usage(5, 6))]
    reply, whole = gathered(payloads), by_openai(payloads)
    assert reply.message is not None
    assert reply.message.text == whole.choices[0].message.content == "hello there"
    assert reply.usage == Usage(input=5, output=6)
