"""The error tree: whose fault it is, and the code, type and status that clients rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy.core import errors
from proxy.core.errors import (
    ClientError,
    ClientLeft,
    GatewayError,
    Overflow,
    TooLong,
    UpstreamError,
    WeirgateError,
    WindowExceeded,
)

CONTRACT = {
    "Malformed": (400, "invalid_request_error", "invalid_json", False),
    "Unauthorised": (401, "invalid_request_error", "invalid_api_key", False),
    "Forbidden": (403, "permission_error", "forbidden", False),
    "NotFound": (404, "invalid_request_error", "not_found", False),
    "Conflict": (409, "invalid_request_error", "conflict", False),
    "MethodNotAllowed": (405, "invalid_request_error", "method_not_allowed", False),
    "TooSlow": (408, "invalid_request_error", "request_timeout", True),
    "TooLarge": (413, "invalid_request_error", "request_too_large", False),
    "WrongMedia": (415, "invalid_request_error", "unsupported_media_type", False),
    "HeadersTooLarge": (431, "invalid_request_error", "headers_too_large", False),
    "Busy": (429, "rate_limit_error", "rate_limit_exceeded", True),
    "QuotaSpent": (429, "insufficient_quota", "insufficient_quota", False),
    "CircuitOpen": (503, "server_error", "circuit_open", True),
    "Unreachable": (502, "upstream_error", "upstream_unreachable", False),
    "TimedOut": (504, "upstream_error", "upstream_timeout", False),
    "InvalidReply": (502, "upstream_error", "upstream_invalid_response", False),
    "Rejected": (400, "invalid_request_error", "upstream_rejected", False),
    "ModelUnknown": (404, "invalid_request_error", "model_not_found", False),
    "OutOfCredit": (429, "insufficient_quota", "insufficient_quota", False),
    "KeyRefused": (502, "upstream_error", "upstream_auth_failed", False),
    "RateLimited": (429, "upstream_error", "upstream_rate_limited", True),
    "Overloaded": (503, "upstream_error", "upstream_overloaded", True),
    "StoreUnavailable": (503, "server_error", "storage_unavailable", True),
    "ShuttingDown": (503, "server_error", "shutting_down", True),
    "Internal": (500, "server_error", "internal_error", False),
}


def leaves(kind: type[WeirgateError]) -> Iterator[type[WeirgateError]]:
    for below in kind.__subclasses__():
        yield below
        yield from leaves(below)


@pytest.mark.parametrize("name", CONTRACT)
def test_each_error_keeps_to_the_contract(name: str) -> None:
    error = getattr(errors, name)("said")
    assert (error.status, error.type, error.code, error.retry) == CONTRACT[name]
    assert (error.message, str(error), error.param, error.retry_after) == ("said", "said", None, None)


def test_every_error_is_the_clients_the_upstreams_or_ours() -> None:
    ours = {kind for kind in leaves(WeirgateError) if kind.__module__ == errors.__name__}
    axis = {ClientError, UpstreamError, GatewayError}
    assert all(issubclass(kind, tuple(axis)) for kind in ours)
    assert {kind.__name__ for kind in ours - axis} == {*CONTRACT, "WindowExceeded", "TooLong"}


def test_what_is_known_better_replaces_what_the_kind_says() -> None:
    error = errors.Malformed("x", code="out_of_range", param="n", retry=True, retry_after=2.0)
    assert (error.code, error.param, error.retry, error.retry_after) == ("out_of_range", "n", True, 2.0)
    assert errors.Malformed("x").code == "invalid_json"
    upstream = errors.Unreachable("x", sent=False, upstream_status=7, retry=True)
    assert (upstream.sent, upstream.upstream_status, upstream.retry, upstream.again) == (False, 7, True, False)


def test_an_upstream_is_taken_to_have_worked_unless_it_is_known_not_to() -> None:
    assert errors.Unreachable("x").sent


def test_both_ways_to_say_too_long_look_the_same_to_a_client() -> None:
    passed, final = TooLong(Overflow(limit=5), said=True, upstream_status=413), WindowExceeded("x")
    for error in (passed, final):
        assert (error.status, error.type, error.code) == (400, "invalid_request_error", "context_length_exceeded")
    assert (passed.overflow.limit, passed.said, passed.upstream_status) == (5, True, 413)
    assert final.param == "messages"


def test_a_client_that_left_is_no_error_of_anybody() -> None:
    assert not issubclass(ClientLeft, WeirgateError)
    assert ClientLeft(said=True).said
