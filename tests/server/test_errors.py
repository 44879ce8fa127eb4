"""Every error of ours has the OpenAI form, and says nothing that it should not."""

from __future__ import annotations

import msgspec
import pytest

from proxy.core import errors
from proxy.core.errors import Busy, Internal, Malformed, MethodNotAllowed, ShuttingDown, TooSlow, WeirgateError
from proxy.server.errors import closes, error_body, error_frame, error_response
from proxy.server.head import new_request_id


def every_kind(of: type[WeirgateError] = WeirgateError) -> list[type[WeirgateError]]:
    return [of, *(deeper for kind in of.__subclasses__() for deeper in every_kind(kind))]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_every_kind_of_error_has_the_four_members_and_the_four_headers(kind: type[WeirgateError]) -> None:
    error = kind(errors.Overflow()) if kind is errors.TooLong else kind("Said plainly.")
    status, headers, body = error_response(error, "req_1")
    said = msgspec.json.decode(body)
    assert list(said) == ["error"]
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert status == kind.status
    assert 400 <= status < 600
    fields = dict(headers)
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"content-length"] == str(len(body)).encode()
    assert fields[b"x-request-id"] == b"req_1"
    assert fields[b"x-should-retry"] == (b"true" if error.retry else b"false")
    assert all(b"\r" not in value and b"\n" not in value for value in fields.values())


def test_retry_after_is_whole_seconds_rounded_up_and_only_where_known() -> None:
    for known, told in ((0.0, b"0"), (0.2, b"1"), (3.0, b"3"), (-5.0, b"0"), (None, None)):
        _, headers, _ = error_response(Busy("Later.", retry_after=known), "r")
        assert dict(headers).get(b"retry-after") == told


def test_a_stranger_among_exceptions_is_an_internal_error_without_its_text() -> None:
    status, headers, body = error_response(ValueError("sk-secret and a message"), "r")
    assert status == 500
    assert b"secret" not in body
    assert msgspec.json.decode(body)["error"]["code"] == "internal_error"
    assert dict(headers)[b"x-should-retry"] == b"false"


def test_errors_about_the_connection_end_it_and_others_do_not() -> None:
    ending = [Malformed("m", code="bad_http"), TooSlow("m"), errors.HeadersTooLarge("m"), ShuttingDown("m")]
    staying = [Malformed("m"), Busy("m"), errors.Unauthorised("m"), Internal("m"), errors.TooLarge("m")]
    assert all(closes(error) for error in ending)
    assert not any(closes(error) for error in [*staying, ValueError()])
    assert dict(error_response(TooSlow("m"), "r")[1])[b"connection"] == b"close"
    assert b"connection" not in dict(error_response(Busy("m"), "r")[1])
    assert dict(error_response(Busy("m"), "r", close=True)[1])[b"connection"] == b"close"


def test_a_405_lists_what_is_allowed() -> None:
    assert dict(error_response(MethodNotAllowed("m"), "r", allow="GET, POST")[1])[b"allow"] == b"GET, POST"


def test_a_frame_is_one_unnamed_event_with_the_same_object() -> None:
    error = errors.TimedOut("The provider fell silent.")
    frame = error_frame(error)
    assert frame == b"data: " + error_body(error) + b"\n\n"
    assert frame.count(b"\n") == 2


def test_a_field_name_that_cannot_be_encoded_or_is_endless_is_still_answered() -> None:
    said = msgspec.json.decode(error_body(Malformed("m", param="\ud800é" + "x" * 1000)))
    assert said["error"]["param"].startswith("?é")
    assert len(said["error"]["param"]) == 256


def test_request_ids_are_tokens_and_differ() -> None:
    made = {new_request_id() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(id) for id in made} == {30}
    assert all(id.startswith("req_") and id[4:].isalnum() and id.islower() for id in made)
