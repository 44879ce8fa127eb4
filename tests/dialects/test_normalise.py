"""Each repair of a provider's chat answer, one by one, and that a conforming answer stays the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.normalise import Normaliser
from tests import data

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
CHAT = (
    "alibaba",
    "deepseek",
    "groq",
    "mistral",
    "moonshotai",
    "openai",
    "openai-compatible",
    "perplexity",
    "togetherai",
    "xai",
)


def normaliser() -> Normaliser:
    return Normaliser(id="chatcmpl-ours", created=7, model="ours")


def chunk(*choices: dict[str, Any], **members: Any) -> dict[str, Any]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": list(choices), **members}


def choice(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def wire(value: object) -> bytes:
    """JSON with blanks that no encoder of ours would write: equal bytes mean untouched bytes."""
    return json.dumps(value, indent=1).encode()


def sent(frames: Iterable[object], through: Normaliser | None = None) -> list[Any]:
    through = through or normaliser()
    out = [frame for payload in frames for frame in through.frame(wire(payload))]
    return [json.loads(frame) for frame in (*out, *through.finish())]


def call(**members: Any) -> dict[str, Any]:
    return {"index": 0, "id": "t1", "type": "function", "function": {"name": "look", "arguments": ""}, **members}


CONFORMING = [
    chunk(choice(role="assistant", content="")),
    chunk(choice(content="héllo \U0001f600"), usage=None, provider={"x": [1.50, None]}),
    chunk(choice(role="assistant", content=None, tool_calls=[call()])),
    chunk(choice(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}])),
    chunk(choice("tool_calls")),
    chunk(usage=USAGE),
]


def test_a_conforming_stream_comes_back_byte_for_byte() -> None:
    through = normaliser()
    for payload in map(wire, CONFORMING):
        assert through.frame(payload) == (payload,)
    assert through.finish() == ()


def test_usage_on_every_chunk_becomes_one_frame_at_the_end() -> None:
    frames = [
        chunk(choice(role="assistant", content="a"), usage={**USAGE, "completion_tokens": 1}),
        chunk(choice(content="b"), usage=USAGE),
        chunk(choice("stop"), usage=USAGE),
    ]
    out = sent(frames)
    assert [frame.get("usage") for frame in out] == [None, None, None, USAGE]
    assert out[-1] == chunk(usage=USAGE)
    assert [len(frame["choices"]) for frame in out] == [1, 1, 1, 0]


def test_usage_frames_before_the_end_are_held_and_only_the_last_is_sent() -> None:
    frames = [
        chunk(usage={"prompt_tokens": 5}),
        chunk(choice("stop", role="assistant")),
        chunk(usage=USAGE),
        chunk(usage=USAGE),
    ]
    assert [frame.get("usage") for frame in sent(frames)] == [None, USAGE]


def test_a_usage_frame_without_choices_gets_an_empty_list() -> None:
    last = {name: value for name, value in chunk(usage=USAGE).items() if name != "choices"}
    assert sent([chunk(choice("stop", role="assistant")), last])[-1] == chunk(usage=USAGE)


def test_the_first_delta_of_each_choice_has_a_role() -> None:
    second = {**choice(content="b"), "index": 1}
    out = sent([chunk(choice(content="a")), chunk(second), chunk(choice(content="c"))])
    assert [frame["choices"][0]["delta"].get("role") for frame in out] == ["assistant", "assistant", None]
    assert sent([chunk(choice(role=None, content="a"))])[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("member", "stand_in"),
    [("object", "chat.completion.chunk"), ("id", "chatcmpl-ours"), ("created", 7), ("model", "ours")],
)
@pytest.mark.parametrize("stated", ["absent", None, ""])
def test_a_missing_member_of_the_envelope_is_filled_in(member: str, stand_in: object, stated: str | None) -> None:
    frame = chunk(choice(role="assistant", content="a"), **{member: stated})
    if stated == "absent":
        del frame[member]
    out = sent([frame])
    assert out == [{**frame, member: stand_in}]


def test_a_wrong_object_is_corrected() -> None:
    assert sent([chunk(choice(role="assistant"), object="chat.completion")]) == [chunk(choice(role="assistant"))]


@pytest.mark.parametrize("delta", [None, "absent", []])
def test_a_delta_that_is_no_object_becomes_an_empty_one(delta: object) -> None:
    last: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": "stop"}
    if delta == "absent":
        del last["delta"]
    assert sent([chunk(choice(role="assistant", content="a")), chunk(last)])[-1] == chunk(choice("stop"))


def test_choices_that_are_null_become_an_empty_list() -> None:
    assert sent([{**chunk(), "choices": None}]) == [chunk()]


def test_a_choice_without_index_gets_its_place() -> None:
    assert sent([chunk({"delta": {"role": "assistant"}})])[0]["choices"][0]["index"] == 0


def test_tool_deltas_without_index_are_placed_by_their_ids() -> None:
    def piece(id: str | None, arguments: str) -> dict[str, Any]:
        stated: dict[str, Any] = {"type": "function", "function": {"arguments": arguments}}
        return {**stated, "id": id} if id else stated

    deltas = [piece("a", "1"), piece(None, "2"), piece("b", "3"), piece(None, "4"), piece("a", "5")]
    out = sent([chunk(choice(role="assistant", tool_calls=[delta])) for delta in deltas])
    assert [frame["choices"][0]["delta"]["tool_calls"][0]["index"] for frame in out] == [0, 0, 1, 1, 0]


def test_whole_calls_in_one_frame_without_index_or_id_are_kept_apart() -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    out = sent([chunk(choice("tool_calls", role="assistant", tool_calls=calls))])
    placed = out[0]["choices"][0]["delta"]["tool_calls"]
    assert [one["index"] for one in placed] == [0, 1]
    assert len({one["id"] for one in placed}) == 2


def test_the_opening_tool_delta_has_a_type_and_the_others_need_none() -> None:
    opening = {"index": 0, "id": "t", "function": {"name": "look", "arguments": "{"}}
    later = {"index": 0, "function": {"arguments": "}"}}
    out = sent([chunk(choice(role="assistant", tool_calls=[opening])), chunk(choice(tool_calls=[later]))])
    assert [frame["choices"][0]["delta"]["tool_calls"][0].get("type") for frame in out] == ["function", None]


@pytest.mark.parametrize(("given_", "text"), [({"a": [1, "é"]}, '{"a":[1,"é"]}'), ({}, "{}"), (None, "")])
def test_arguments_that_are_no_string_become_their_json(given_: object, text: str) -> None:
    frame = chunk(choice(role="assistant", tool_calls=[call(function={"name": "look", "arguments": given_})]))
    assert sent([frame])[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == text


def test_a_call_without_parameters_gets_an_empty_object_before_the_finish() -> None:
    out = sent([chunk(choice(role="assistant", tool_calls=[call()])), chunk(choice("tool_calls"))])
    assert out[1] == chunk(choice(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]))
    assert out[2] == chunk(choice("tool_calls"))
    assert len(out) == 3


def test_a_call_without_parameters_that_comes_with_the_finish_is_closed_in_its_frame() -> None:
    (frame,) = sent([chunk(choice("tool_calls", role="assistant", tool_calls=[call()]))])
    assert frame["choices"][0]["delta"]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


def test_a_choice_that_finishes_twice_or_names_no_function_is_closed_once() -> None:
    nameless = {"index": 0, "id": "t", "type": "function"}
    ending = chunk(choice("tool_calls"))
    first, *rest = sent([chunk(choice("tool_calls", role="assistant", tool_calls=[nameless])), ending, ending])
    assert first["choices"][0]["delta"]["tool_calls"] == [{**nameless, "function": {"arguments": "{}"}}]
    assert rest == [ending, ending]


def test_only_the_calls_without_arguments_are_closed() -> None:
    argued = call(index=1, id="t2", function={"name": "look", "arguments": "{}"})
    out = sent([chunk(choice(role="assistant", tool_calls=[call(), argued])), chunk(choice("tool_calls"))])
    assert [piece["index"] for piece in out[1]["choices"][0]["delta"]["tool_calls"]] == [0]
    assert len(out) == 3


@pytest.mark.parametrize("finish", [None, "length", "content_filter", "error"])
def test_a_call_that_was_cut_is_not_made_to_look_whole(finish: str | None) -> None:
    frames = [chunk(choice(role="assistant", tool_calls=[call()])), chunk(choice(finish))]
    assert sent(frames) == frames


def test_changing_ids_become_the_first_one() -> None:
    out = sent([chunk(choice(role="assistant"), id="a"), chunk(choice("stop"), id="b"), chunk(usage=USAGE, id="c")])
    assert [frame["id"] for frame in out] == ["a", "a", "a"]


def test_the_id_that_stood_in_for_a_missing_one_holds_to_the_end() -> None:
    out = sent([chunk(id=""), chunk(choice("stop", role="assistant"), id="b")])
    assert [frame["id"] for frame in out] == ["chatcmpl-ours", "chatcmpl-ours"]


def test_null_content_beside_tool_calls_stays() -> None:
    frame = wire(chunk(choice(role="assistant", content=None, tool_calls=[call()])))
    assert normaliser().frame(frame) == (frame,)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[DONE]",
        b"{",
        b"[]",
        b"1",
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"type": "ping"}',
        b'{"error": {"message": "no"}}',
        b'{"error": {"message": "no"}, "choices": [{"delta": null}]}',
        b'{"choices": [], "usage": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_chunk_comes_back_unchanged(payload: bytes) -> None:
    assert normaliser().frame(payload) == (payload,)
    assert normaliser().reply(payload) == payload


def test_half_a_surrogate_pair_survives_a_repair() -> None:
    (frame,) = normaliser().frame(b'{"choices": [{"index": 0, "delta": {"content": "\\ud83d"}}]}')
    assert json.loads(frame)["choices"][0]["delta"] == {"content": "\ud83d", "role": "assistant"}


# -- whole replies ---------------------------------------------------------------------------------------------------


def answer(message: dict[str, Any], finish: str = "stop", **members: Any) -> dict[str, Any]:
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE}
    return {**head, "choices": [{"index": 0, "message": message, "finish_reason": finish}], **members}


def test_a_conforming_reply_comes_back_byte_for_byte() -> None:
    whole = call(function={"name": "look", "arguments": '{"a": 1}'})
    for message in (
        {"role": "assistant", "content": "é"},
        {"role": "assistant", "content": None, "tool_calls": [whole]},
    ):
        assert normaliser().reply(wire(answer(message))) == wire(answer(message))


def test_a_reply_gets_what_its_envelope_lacks() -> None:
    bare = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": USAGE}
    repaired = json.loads(normaliser().reply(wire(bare)))
    assert repaired == answer({"role": "assistant", "content": "a"}, id="chatcmpl-ours", created=7, model="ours")


def test_a_replys_call_that_is_no_object_is_left_alone() -> None:
    body = wire(answer({"role": "assistant", "tool_calls": [None, "a", {"id": "t", "type": "function"}]}))
    assert normaliser().reply(body) == body


@pytest.mark.parametrize(("given_", "text"), [("", "{}"), (None, "{}"), ({"a": 1}, '{"a":1}'), ("{", "{")])
def test_a_replys_tool_arguments_are_the_text_of_an_object(given_: object, text: str) -> None:
    bare = {"id": "t", "function": {"name": "look", "arguments": given_}}
    repaired = json.loads(normaliser().reply(wire(answer({"role": "assistant", "tool_calls": [bare]}, "tool_calls"))))
    (made,) = repaired["choices"][0]["message"]["tool_calls"]
    assert made == {"id": "t", "type": "function", "function": {"name": "look", "arguments": text}}


def test_a_call_cut_in_a_reply_is_not_made_to_look_whole() -> None:
    body = wire(answer({"role": "assistant", "tool_calls": [call()]}, "length"))
    assert normaliser().reply(body) == body


# -- any stream ------------------------------------------------------------------------------------------------------

odd = st.sampled_from([None, "", 0, 1, True, "a", [], {}, [{}], {"a": 1}, [None]])
functions = st.fixed_dictionaries({}, optional={"name": odd, "arguments": odd})
calls = st.fixed_dictionaries(
    {}, optional={"index": odd, "id": odd, "type": odd, "function": st.one_of(odd, functions)}
)
deltas = st.fixed_dictionaries(
    {},
    optional={"role": odd, "content": odd, "tool_calls": st.one_of(odd, st.lists(st.one_of(odd, calls), max_size=3))},
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "index": odd,
        "delta": st.one_of(odd, deltas),
        "finish_reason": st.sampled_from([None, "stop", "length"]),
    },
)
chunks = st.fixed_dictionaries(
    {"choices": st.one_of(odd, st.lists(st.one_of(odd, choices), max_size=2))},
    optional={"id": odd, "object": odd, "created": odd, "model": odd, "usage": odd, "error": odd},
)


def through(payloads: Iterable[bytes]) -> list[bytes]:
    made = normaliser()
    out = [frame for payload in payloads for frame in made.frame(payload)]
    return [*out, *made.finish()]


@given(st.lists(st.one_of(chunks, odd), max_size=6))
def test_no_stream_makes_it_raise_and_usage_is_sent_once(frames: list[Any]) -> None:
    out = [json.loads(frame) for frame in through(map(wire, frames))]
    counted = [frame for frame in out if isinstance(frame, dict) and frame.get("usage") and not frame.get("error")]
    assert len(counted) <= 1
    assert all(frame["choices"] == [] for frame in counted)


@given(st.binary(max_size=60))
def test_no_bytes_make_it_raise(payload: bytes) -> None:
    normaliser().frame(payload)
    normaliser().reply(payload)


@given(chunks)
def test_no_reply_makes_it_raise(body: Any) -> None:
    json.loads(normaliser().reply(wire(body)))


@pytest.mark.data
def test_recorded_chat_streams_say_the_same_and_need_no_second_repair() -> None:
    seen = 0
    for recorded in data.provider_streams(*CHAT):
        if not recorded.is_stream:
            continue
        payloads = recorded.payloads()
        before = [json.loads(payload) for payload in payloads]
        if not any(isinstance(frame, dict) and "choices" in frame for frame in before):
            continue
        seen += 1
        out = through(payloads)
        after = [json.loads(payload) for payload in out]
        assert _said(after) == _said(before), recorded.path
        assert sum(1 for frame in after if frame.get("usage")) <= 1, recorded.path
        assert through(out) == out, recorded.path
    assert seen >= 5


def _said(frames: list[dict[str, Any]]) -> tuple[str, str, dict[Any, str], list[str], Any]:
    """What a client reads: text, reasoning, arguments per call, finish reasons, the last usage."""
    text, thought, reasons, usage = "", "", [], None
    arguments: dict[Any, str] = {}
    for frame in frames:
        usage = frame.get("usage") or usage
        for one in frame.get("choices") or []:
            delta = one.get("delta") or {}
            content = delta.get("content")
            text += content if isinstance(content, str) else json.dumps(content) if content else ""
            thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            reasons += [one["finish_reason"]] if one.get("finish_reason") else []
            for piece in delta.get("tool_calls") or []:
                arguments.setdefault(piece.get("index", 0), "")
                arguments[piece.get("index", 0)] += piece["function"].get("arguments") or ""
    return text, thought, {at: said or "{}" for at, said in arguments.items()}, reasons, usage
