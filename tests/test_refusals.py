"""What a client is told when a provider refuses: the table of the error contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import (
    InvalidReply,
    KeyRefused,
    ModelUnknown,
    OutOfCredit,
    Overloaded,
    RateLimited,
    Rejected,
    Unauthorised,
    UpstreamError,
    WeirgateError,
)
from proxy.refusals import provider_words, refusal

SECRET = "sk-proj-abcdefghijkl0123456789"


def error(message: Any = "no", code: Any = None) -> bytes:
    return json.dumps({"error": {"message": message, "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "own_key", "kind", "ours", "type", "code", "retry"),
    [
        (400, True, Rejected, 400, "invalid_request_error", "upstream_rejected", False),
        (422, True, Rejected, 400, "invalid_request_error", "upstream_rejected", False),
        (413, True, Rejected, 400, "invalid_request_error", "upstream_rejected", False),
        (401, True, KeyRefused, 502, "upstream_error", "upstream_auth_failed", False),
        (403, True, KeyRefused, 502, "upstream_error", "upstream_auth_failed", False),
        (401, False, Unauthorised, 401, "invalid_request_error", "invalid_api_key", False),
        (403, False, Unauthorised, 401, "invalid_request_error", "invalid_api_key", False),
        (402, True, OutOfCredit, 429, "insufficient_quota", "insufficient_quota", False),
        (404, True, ModelUnknown, 404, "invalid_request_error", "model_not_found", False),
        (429, True, RateLimited, 429, "upstream_error", "upstream_rate_limited", True),
        (503, True, Overloaded, 503, "upstream_error", "upstream_overloaded", True),
        (529, True, Overloaded, 503, "upstream_error", "upstream_overloaded", True),
        (302, True, InvalidReply, 502, "upstream_error", "upstream_invalid_response", False),
        (500, True, UpstreamError, 502, "upstream_error", "upstream_error", False),
        (502, True, UpstreamError, 502, "upstream_error", "upstream_error", False),
        (504, True, UpstreamError, 502, "upstream_error", "upstream_error", False),
        (100, True, UpstreamError, 502, "upstream_error", "upstream_error", False),
        (204, True, UpstreamError, 502, "upstream_error", "upstream_error", False),
    ],
)
def test_each_status_of_a_provider_has_one_meaning(
    status: int, own_key: bool, kind: type[WeirgateError], ours: int, type: str, code: str, retry: bool
) -> None:
    found = refusal(status, error(), own_key=own_key)
    assert found.__class__ is kind
    assert (found.status, found.type, found.code, found.retry) == (ours, type, code, retry)
    if isinstance(found, UpstreamError):
        assert found.upstream_status == status
        assert found.sent
        assert not found.again


def test_a_model_that_the_provider_does_not_know_is_named_by_its_member() -> None:
    found = refusal(404, error("The model `x` does not exist"), own_key=True)
    assert found.param == "model"
    assert "The model `x` does not exist" in found.message


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), (None, None), ("soon", None), ("-1", None), ("1.5", None), ("²", None), ("9" * 400, None)],
)
def test_how_long_to_wait_is_passed_on_where_it_is_a_number(
    status: int, header: str | None, seconds: float | None
) -> None:
    assert refusal(status, b"", own_key=True, retry_after=header).retry_after == seconds


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("unsupported_parameter", "unsupported_parameter"),
        ("content_filter", "content_filter"),
        ("their_own_code", "upstream_rejected"),
        (7, "upstream_rejected"),
        (None, "upstream_rejected"),
    ],
)
def test_a_code_is_kept_where_clients_know_it(code: Any, kept: str) -> None:
    assert refusal(400, error(code=code), own_key=True).code == kept


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (error("too many tools"), "too many tools"),
        (b'{"error":"too many tools"}', "too many tools"),
        (b'{"message":"too many tools"}', "too many tools"),
        (b'"too many tools"', "too many tools"),
        (b"Bad Request", "Bad Request"),
        (b"<html>\n<h1>Bad</h1>", "<html> <h1>Bad</h1>"),
        (b"\xff", "\ufffd"),
        (error(f"Incorrect API key provided: {SECRET}."), "Incorrect API key provided: ***."),
        (error(""), "no reason given"),
        (error(7), "no reason given"),
        (b"", "no reason given"),
        (b"7", "no reason given"),
        (b"[]", "no reason given"),
        (b"{}", "no reason given"),
        (b'{"error":null}', "no reason given"),
        (b'{"error":[1]}', "no reason given"),
    ],
)
def test_a_providers_own_words_are_found_and_redacted(body: bytes, words: str) -> None:
    assert provider_words(body) == words


def test_long_words_are_cut() -> None:
    assert len(provider_words(error("a b " * 1000))) == 400
    assert len(provider_words(error("a b " * 100_000))) <= 400  # and so is a body that is cut in the middle
    assert provider_words(b"[" * 100_000).startswith("[[")


@given(
    status=st.integers(100, 599),
    body=st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["error", "message", "code"]), inner)
        ),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
    own_key=st.booleans(),
    retry_after=st.none() | st.text(max_size=4),
)
def test_whatever_a_provider_answers_becomes_an_error_of_ours(
    status: int, body: bytes, own_key: bool, retry_after: str | None
) -> None:
    found = refusal(status, body, own_key=own_key, retry_after=retry_after)
    assert 400 <= found.status < 600
    assert found.code


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("own_key", [True, False])
def test_no_key_is_ever_repeated(status: int, own_key: bool) -> None:
    for body in (error(f"key {SECRET} is bad", code=SECRET), f"Authorization: Bearer {SECRET}".encode()):
        found = refusal(status, body, own_key=own_key)
        assert SECRET not in found.message
        assert SECRET not in found.code
