"""What is an overflow and what is none, what it teaches, and what the client is told.

The texts here are structures in words of their own; the recorded errors are read from the data.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Overflow
from proxy.core.overflow import final_text, learnable, recognise, recognise_finish, truncated
from proxy.core.steps import Limits
from proxy.core.usage import Usage

OVER = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


def error(message: str, **members: Any) -> bytes:
    return json.dumps({"error": {"message": message, **members}}).encode()


# -- where the text stands -------------------------------------------------------------------------------------------

SHAPES: list[Any] = [
    {"error": {"message": OVER, "type": "invalid_request_error"}},
    {"error": OVER},
    {"message": OVER},
    {"detail": OVER},
    {"detail": [{"loc": ["body"], "msg": OVER}]},
    {"errors": [{"message": OVER, "code": 8007}], "success": False},
    [{"error": {"code": 400, "message": OVER}}],
    {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps({"error": {"message": OVER}})}}},
    {"error": {"message": "Provider returned error", "metadata": {"raw": {"message": OVER}}}},
    {"error": {"message": "Error from provider: " + json.dumps({"error": {"message": OVER}}) + ". Received Group=a"}},
    {"error": {"message": "Param Incorrect", "param": OVER}},
    {"ErrorCode": "MODEL", "OriginalMessage": json.dumps({"error": json.dumps({"message": OVER})})},
]


@pytest.mark.parametrize("body", SHAPES)
def test_it_is_found_wherever_providers_put_it(body: Any) -> None:
    for wrapped in (
        json.dumps(body),
        json.dumps(body, ensure_ascii=False, indent=1),
        "event:error\ndata:" + json.dumps(body),
    ):
        found = recognise(400, wrapped.encode())
        assert found is not None and (found.limit, found.requested) == (8192, 9000)


@pytest.mark.parametrize(
    "text",
    [
        OVER,
        OVER.lower(),
        OVER.replace("'", "\u2019"),
        "\ufeff" + OVER,
        f"<html><body><p>{OVER.replace(chr(39), '&#39;')}</p></body></html>",
        f"{{'error': {{'message': \"{OVER}\"}}}}",
        f"error: {OVER}",
    ],
)
def test_it_is_found_in_plain_text(text: str) -> None:
    found = recognise(400, text.encode())
    assert found is not None and (found.limit, found.requested) == (8192, 9000)


STATED_IN_A_SUCCESS: list[Any] = [
    {"error": {"message": OVER}},
    {"id": "g", "error": {"message": OVER}, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]},
    {"id": "g", "choices": [{"error": {"message": OVER}, "finish_reason": "error"}]},
    {"type": "response.failed", "response": {"error": {"message": OVER}, "output": []}},
    {"type": "error", "message": OVER},
    {"validationException": {"message": OVER}},
    {"base_resp": {"status_code": 1, "status_msg": OVER}},
    {"header": {"code": 1, "message": OVER}},
    {"error_code": 1, "error_msg": OVER},
    [{"error": {"message": OVER}}],
]


@pytest.mark.parametrize("body", STATED_IN_A_SUCCESS)
def test_an_error_stated_after_a_200_counts(body: Any) -> None:
    assert recognise(200, json.dumps(body).encode()) is not None
    assert recognise(200, b"data: " + json.dumps(body).encode() + b"\n\n") is not None


QUOTED: list[Any] = [
    {"choices": [{"message": {"role": "assistant", "content": OVER}}]},
    {"choices": [{"delta": {"content": OVER, "reasoning": OVER}}], "model": OVER},
    {"choices": [{"message": {"tool_calls": [{"function": {"arguments": json.dumps({"error": OVER})}}]}}]},
    {"message": {"role": "assistant", "content": OVER}, "done": True},
    {"response": OVER, "done": True},
    {"candidates": [{"content": {"parts": [{"text": OVER}]}}]},
    {"type": "response.output_text.delta", "delta": OVER},
    {"type": "response.completed", "response": {"instructions": OVER, "output": [{"text": OVER}], "error": None}},
    {"id": "r", "object": "response", "status": "completed", "output": [], "instructions": OVER, "error": None},
    OVER,
]


@pytest.mark.parametrize("body", QUOTED)
def test_the_content_of_a_success_is_never_searched(body: Any) -> None:
    for text in (json.dumps(body), "data: " + json.dumps(body)):
        assert recognise(200, text.encode()) is None
    assert recognise(200, OVER.encode()) is None


def test_user_input_that_an_error_echoes_is_not_searched() -> None:
    body = {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"a": OVER}}]}
    assert recognise(422, json.dumps(body).encode()) is None


# -- what is said ----------------------------------------------------------------------------------------------------

OVERFLOWS: list[tuple[str, int | None, int | None]] = [
    ("The prompt has 9,001 tokens, but this model's context window is 8,192 tokens.", 8192, 9001),
    ("Prompt length 5000 exceeds maximum context length of 4096", 4096, 5000),
    ("The number of tokens in the prompt (4123) exceeds the model's limit (4000).", 4000, 4123),
    ("Input is too long. Max input tokens: 8000, got 9123", 8000, 9123),
    ("This request has 130001 tokens which is over the maximum context window of 128000 tokens", 128000, 130001),
    ("context length exceeded: 140000 > 131072", 131072, 140000),
    ("Conversation is too long, please start a new one", None, None),
    ("Sequence length is longer than the maximum sequence length of this model (5200 > 2048)", 2048, 5200),
    ("too many total tokens: 20000 (limit 16384)", 16384, 20000),
    ("the input sequence exceeds n_ctx (4096)", 4096, None),
    ("This model supports a maximum context of 32768 tokens; your request used 40000", 32768, 40000),
    ("Input tokens (150000) plus max_tokens (8192) exceeds context window of 131072", 131072, 158192),
    ("The sum of prompt length (7000.0), query length (0) should not exceed max_num_tokens (4096)", 4096, 7000),
    ("needs more tokens than the context size allows: prompt=5200, n_ctx=4096", 4096, 5200),
    ("The text is too long for the model: 9000 tokens, max 8192", 8192, 9000),
    ("Request body too large for some-model model. Max size: 8000 tokens.", 8000, None),
    ("Input length 9000 exceeds maximum allowed token size 8192", 8192, 9000),
    ("Request exceeds context window: 9000 tokens requested, 8192 available.", 8192, 9000),
    ("Prompt exceeds the model's context window (9000/8192 tokens).", 8192, 9000),
    ("Input is 9000 tokens long, but the model only supports 8192.", 8192, 9000),
    ("input_tokens (9000) + max_new_tokens (1000) exceeds max context of 8192", 8192, 10000),
    ("prompt tokens (9000) + completion tokens (500) > context length (8192)", 8192, 9500),
    ("输入的token数量超过模型最大上下文长度", None, None),
    ("文本长度超过模型最大上下文限制", None, None),
]


@pytest.mark.parametrize(("text", "limit", "requested"), OVERFLOWS)
def test_structures_of_an_overflow_are_known_with_their_numbers(
    text: str, limit: int | None, requested: int | None
) -> None:
    found = recognise(400, error(text))
    assert found is not None
    assert (found.limit, found.requested) == (limit, requested)


FALSE_FRIENDS = [
    (429, OVER),
    (402, "Prompt tokens limit exceeded: 64128 > 6964"),
    (400, "Request too large: tokens per min limit 30000, requested 30601. Reduce the length of the prompt."),
    (400, "Rate limit reached: too many input tokens"),
    (400, "Your credits do not cover a prompt of this length: too many input tokens"),
    (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"),
    (400, "max_completion_tokens is too large: 200000. This model supports at most 100000 completion tokens"),
    (400, "`max_tokens` must be less than or equal to 8192, less than the `context_window` for this model"),
    (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    (400, "Unsupported parameter: 'max_tokens' is not supported with this model."),
    (400, "max_tokens must be at least 1, got 0."),
    (400, "max_tokens must be at least 1, got -1."),
    (413, "Request body exceeds the maximum allowed size of 32 MB"),
    (413, "Payload Too Large: the input exceeds the maximum size"),
    (413, "length limit exceeded"),
    (400, "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
    (400, "too many images and documents: 101 + 0 > 100"),
    (400, "Invalid 'tools': array too long. Expected an array with maximum length 128, but got length 140."),
    (400, "messages.2: tool_use ids were found without tool_result blocks; the context is over"),
    (400, "Cached content is too small. The minimum token count is 4096"),
    (400, "input (1243 tokens) is too large to process. increase the physical batch size (512)"),
    (400, "The number of tools exceeds the limit of 128"),
    (400, "max_tokens (9000) exceeds the maximum of 8192 output tokens for this model"),
    (400, "Audio duration 1500 seconds is longer than 1400 seconds which is the maximum for this model"),
    (400, "Too many messages: 2100 > 2048"),
    (503, "The model is overloaded: queue length exceeds maximum"),
    (400, "The model does not exist. See https://example.com/errors#prompt-is-too-long"),
    (400, "Invalid schema for function 'read': In context=('properties',), schema must have a 'type' key."),
    (500, "Internal server error"),
    (503, "The engine is currently overloaded, please try again later"),
]


@pytest.mark.parametrize(("status", "text"), FALSE_FRIENDS)
def test_false_friends_are_no_overflow(status: int, text: str) -> None:
    assert recognise(status, error(text)) is None
    assert recognise(status, error("Provider returned error", metadata={"raw": json.dumps({"message": text})})) is None


def test_a_code_of_an_overflow_beats_words_that_speak_against_it() -> None:
    assert recognise(400, error("Your rate limit ...", code="context_length_exceeded")) is not None
    assert recognise(400, error("Request body", code="exceed_context_size_error")) is not None
    assert recognise(400, error("no", code="1261")) is not None
    assert recognise(400, error("image exceeds 5 MB", code="1261")) is None


def test_a_code_or_status_of_another_kind_beats_words_of_an_overflow() -> None:
    assert recognise(400, error(OVER, type="tokens")) is None
    assert recognise(200, error(OVER, code=429)) is None
    assert recognise(400, error(OVER, code="rate_limit_exceeded")) is None
    assert recognise(400, error(OVER, code="400")) is not None


# -- opaque refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", error("Provider returned error"), error("Bad Request"), b"<html><h1>400 Bad Request</h1></html>"],
)
def test_a_refusal_without_a_reason_is_an_overflow_only_where_our_estimate_says_so(body: bytes) -> None:
    found = recognise(400, body, projected=9500, window=10_000)
    assert found == Overflow(kind="unknown", exact=False)
    assert recognise(400, body, projected=8900, window=10_000) is None
    assert recognise(400, body, projected=9500) is None
    assert recognise(400, body) is None
    assert recognise(503, body, projected=9500, window=10_000) is None
    assert recognise(200, body, projected=9500, window=10_000) is None


@pytest.mark.parametrize(
    "text",
    ["Unsupported value for temperature in this model", "Request Entity Too Large", "Invalid API key provided for org"],
)
def test_a_refusal_with_a_reason_is_not_taken_for_an_overflow_by_the_estimate(text: str) -> None:
    assert recognise(400, error(text), projected=9999, window=10_000) is None
    assert recognise(413, error(text), projected=9999, window=10_000) is None


def test_a_template_that_misses_the_users_words_was_cut_if_the_prompt_was_near_the_window() -> None:
    body = error("No user query found in messages, so the chat template of this model cannot be rendered at all")
    assert recognise(500, body, projected=9500, window=10_000) is not None
    assert recognise(500, body) is None


# -- bounds ----------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([200, 400, 413, 500, 0]), st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode))
)
def test_no_bytes_make_it_raise(status: int, body: bytes) -> None:
    recognise(status, body, projected=10, window=10)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), st.just(OVER)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["error", "message", "code", "choices", "detail", "errors", "response"]), inner
        ),
    ),
    max_leaves=12,
)


@given(st.sampled_from([200, 400]), values)
def test_no_json_makes_it_raise(status: int, value: Any) -> None:
    recognise(status, json.dumps(value).encode())


@pytest.mark.parametrize(
    "unit",
    ["a", " ", "1", "[", "{", '{"a":', "(1 a, ", "max_tokens ", "input tokens x ", "exceeds a ", "<a", "\\", "http://"],
)
def test_a_mebibyte_of_anything_is_judged_in_bounded_time(unit: str) -> None:
    text = unit * ((1 << 20) // len(unit))
    for body in (text.encode(), json.dumps({"error": {"message": text}}).encode()):
        assert recognise(400, body) is None or "input tokens" in unit
        recognise(200, body)


def test_an_error_behind_a_megabyte_of_echoed_prompt_is_found() -> None:
    assert recognise(400, error("word " * 400_000 + OVER)) is not None
    assert recognise(400, ("word " * 400_000 + OVER).encode()) is not None


# -- finish reasons --------------------------------------------------------------------------------------------------


def test_a_finish_reason_can_name_the_window() -> None:
    found = recognise_finish("model_context_window_exceeded", Usage(input=150_000, output=49_950), None)
    assert found == Overflow(kind="input", requested=199_950, exact=False, input=150_000, output=49_950)
    assert recognise_finish("model_context_window_exceeded", None, None) == Overflow(kind="input", exact=False)


@pytest.mark.parametrize(
    ("usage", "window", "over"),
    [
        (Usage(input=8120, output=0), 8192, True),
        (Usage(input=8192, output=0), 8192, True),
        (Usage(input=7000, output=1150, reasoning=1150), 8192, True),
        (Usage(input=4000, output=0), 8192, False),
        (Usage(input=8100, output=92), 8192, False),
        (Usage(input=500, output=1024), 8192, False),
        (Usage(input=2000, output=500, reasoning=500), 8192, False),
        (Usage(input=5000, output=0), None, True),
        (Usage(input=50, output=0), None, False),
        (Usage(input=5000, output=40, reasoning=40), None, False),
        (Usage(input=8192, output=0, estimated=True), 8192, False),
        (None, 8192, False),
    ],
)
def test_an_end_for_length_with_nothing_said_is_an_overflow_near_the_window(
    usage: Usage | None, window: int | None, over: bool
) -> None:
    assert (recognise_finish("length", usage, window) is not None) is over


@pytest.mark.parametrize("finish", [None, "stop", "tool_calls", "content_filter"])
def test_other_ends_are_no_overflow(finish: str | None) -> None:
    assert recognise_finish(finish, Usage(input=8192, output=0), 8192) is None


# -- silent truncation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "estimate", "window", "before", "limit"),
    [
        (16_387, 160_000, 32_768, None, 32_768),  # half of a known window, and what was kept
        (32_768, 40_000, 32_768, None, 32_768),  # stuck at it
        (32_764, 40_000, 32_768, None, 32_768),
        (32_763, 40_000, 32_768, None, None),
        (16_379, 33_000, 32_768, 9_000, 16_379),
        (16_387, 160_000, None, None, 32_768),  # half of an unknown one
        (16_387, 160_000, 131_072, None, 32_768),  # configured too high
        (16_387, 30_000, 32_768, 9_000, 16_387),  # the doubled guess was tried and cut again
        (4096, 9000, None, 3000, 4096),
        (4000, 9000, None, 3000, 4000),
        (4096, 9000, None, None, None),  # never compared before: the estimate itself may be wrong
        (272, 1537, 32_768, None, None),  # two images that this provider counts as next to nothing
        (4096, 4200, None, 4096, 4096),  # the prompt grew and the report did not
        (4094, 4200, None, 4096, 4096),
        (4096, 4150, None, 4096, None),  # it hardly grew
        (3000, 5000, None, 4096, 4096),  # it grew and the report fell
        (3900, 4300, None, 4096, None),  # it fell a little: not enough to be sure
        (4200, 5000, None, 4096, None),
        (6000, 9000, None, 3000, None),  # within what an estimate may err
        (9000, 9000, None, 3000, None),
        (9000, 4000, None, 3000, None),
        (0, 9000, None, 3000, None),  # not reported
        (200, 700, None, 100, None),  # too small to tell
        (900, 9000, None, 800, None),
        (900, 9000, None, 950, None),
        (8190, 8000, 8192, 3000, None),
    ],
)
def test_a_report_far_below_the_estimate_teaches_the_limit(
    usage: int, estimate: int, window: int | None, before: int | None, limit: int | None
) -> None:
    assert truncated(usage, estimate, window, before) == limit


_SIZES = st.integers(0, 300_000)


@given(_SIZES, _SIZES, st.one_of(st.none(), st.integers(1, 300_000)), st.one_of(st.none(), _SIZES))
def test_a_limit_learned_from_a_cut_lies_below_what_was_sent(
    usage: int, estimate: int, window: int | None, before: int | None
) -> None:
    limit = truncated(usage, estimate, window, before)
    assert limit is None or 0 < limit < estimate


# -- what is learned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (OVER, Limits(total=8192, source="learned")),
        ("prompt is too long: 210000 tokens > 200000 maximum", Limits(input=200_000, source="learned")),
        ("Input tokens exceed the configured limit of 272000 tokens.", Limits(input=272_000, source="learned")),
        (
            "input length and `max_tokens` exceed context limit: 150000 + 60000 > 200000",
            Limits(total=200_000, source="learned"),
        ),
        ("max context length exceeded by 512 tokens", None),
        ("Your input exceeds the context window of this model.", None),
        ("invalid params, context window exceeds limit (2013)", None),
        ("max_tokens must be at least 1, got -500", None),
        ("Malformed input request: expected maxLength: 50000, actual: 52611", None),
        ("Requested tokens (700) exceed context window of 512", None),
    ],
)
def test_only_a_stated_limit_is_learned_and_input_and_total_stay_apart(text: str, limits: Limits | None) -> None:
    found = recognise(400, error(text))
    assert found is not None
    assert learnable(found) == limits


def test_a_tiny_limit_is_believed_only_where_the_configured_window_is_tiny() -> None:
    tiny = Overflow(limit=512, requested=700)
    assert learnable(tiny, window=8192) is None
    assert learnable(tiny, window=1024) == Limits(total=512, source="learned")


# -- the last word ---------------------------------------------------------------------------------------------------

# How clients know it: LangChain, Claude Code, litellm and aider, opencode and pi, Codex.
CLIENTS = [
    r"context_length_exceeded",
    r"^prompt is too long",
    r"exceeds the context window",
    r"reduce the length of the messages",
]


@pytest.mark.parametrize("numbers", [(9000, 8192), (None, 8192), (9000, None), (None, None), (8000, 8192), (0, 0)])
def test_the_last_word_is_known_to_every_client_and_to_us(numbers: tuple[int | None, int | None]) -> None:
    text = final_text(*numbers)
    assert [pattern for pattern in CLIENTS if not re.search(pattern, text)] == []
    assert recognise(400, error(text)) is not None
    assert "None" not in text


def test_the_last_word_states_both_numbers_where_they_are_known() -> None:
    text = final_text(9000, 8192)
    assert re.search(r"prompt is too long: (\d+) tokens > (\d+) maximum", text)
    assert "maximum context length is 8192 tokens, however your messages resulted in 9000 tokens" in text
    found = recognise(400, error(text))
    assert found is not None and (found.limit, found.requested) == (8192, 9000)


def test_a_size_that_contradicts_the_limit_is_not_stated() -> None:
    assert "8000" not in final_text(8000, 8192)
    assert "maximum context length is 8192 tokens" in final_text(8000, 8192)
