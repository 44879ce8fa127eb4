"""Everything that can go wrong, by whose fault it is.

    WeirgateError
      ClientError      the request cannot be served as it stands
        Malformed, Unauthorised, Forbidden, NotFound, Conflict, TooLarge, WrongMedia, HeadersTooLarge, Busy,
        QuotaSpent, WindowExceeded
      UpstreamError    the provider failed
        Unreachable, TimedOut, InvalidReply, Rejected (ModelUnknown), KeyRefused, OutOfCredit, RateLimited,
        Overloaded, CircuitOpen, TooLong
      GatewayError     we failed
        StoreUnavailable, ShuttingDown, Internal
    ClientLeft         not an error: nobody is listening any more

Each carries a stable `code`, a `status` hint, the `type` of the OpenAI error object, the `param` it is about and
whether a `retry` can help. A dialect gives it its form. Messages are ours and never echo content or keys.
Source of the table: research/reliability.md 4.3.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class WeirgateError(Exception):
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"
    retry: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if code is not None:
            self.code = code
        if retry is not None:
            self.retry = retry


class ClientError(WeirgateError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class Malformed(ClientError):
    """Not JSON, or a member is missing, of the wrong type or out of range."""

    code = "invalid_json"


class Unauthorised(ClientError):
    status = 401
    code = "invalid_api_key"


class Forbidden(ClientError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(ClientError):
    """Unknown, or another tenant's: the two are never told apart."""

    status = 404
    code = "not_found"


class Conflict(ClientError):
    """It exists, and is in no state for this."""

    status = 409
    code = "conflict"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"


class TooSlow(ClientError):
    status = 408
    code = "request_timeout"
    retry = True


class TooLarge(ClientError):
    status = 413
    code = "request_too_large"


class WrongMedia(ClientError):
    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(ClientError):
    status = 431
    code = "headers_too_large"


class Busy(ClientError):
    """One of our own limits (streams, queue)."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retry = True


class QuotaSpent(ClientError):
    """A key's budget is used up; waiting a moment does not help."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class WindowExceeded(ClientError):
    """What the client gets when nothing can make the prompt fit. `overflow.final_text` writes the message."""

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str = "messages") -> None:
        super().__init__(message, param=param)


class UpstreamError(WeirgateError):
    """`sent` tells whether the provider may have begun to work (and bill); `upstream_status` is what it answered;
    `again` that the driver's retry budget allows this call to be made once more."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        sent: bool = True,
        upstream_status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param, retry=retry, retry_after=retry_after)
        self.sent = sent
        self.upstream_status = upstream_status
        self.again = False


class Unreachable(UpstreamError):
    """Refused, DNS, TLS, or reset before any output."""

    code = "upstream_unreachable"


class TimedOut(UpstreamError):
    """A connect, first-byte, idle or total deadline passed."""

    status = 504
    code = "upstream_timeout"


class InvalidReply(UpstreamError):
    """HTML, a wrong type, no finish, bad JSON, an oversized body, or a stream that broke."""

    code = "upstream_invalid_response"


class Rejected(UpstreamError):
    """The provider found fault with the request itself."""

    status = 400
    type = "invalid_request_error"
    code = "upstream_rejected"


class ModelUnknown(Rejected):
    """The provider does not know the model, or has no such route."""

    status = 404
    code = "model_not_found"


class OutOfCredit(UpstreamError):
    """The provider wants to be paid; waiting does not help."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class KeyRefused(UpstreamError):
    code = "upstream_auth_failed"


class RateLimited(UpstreamError):
    status = 429
    code = "upstream_rate_limited"
    retry = True


class Overloaded(UpstreamError):
    status = 503
    code = "upstream_overloaded"
    retry = True


class CircuitOpen(UpstreamError):
    """It failed too often of late, and is left alone for a while: nothing was sent."""

    status = 503
    type = "server_error"
    code = "circuit_open"
    retry = True


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's "too long" as a fact. All numbers are tokens, None where it stated none.

    `kind`: the prompt alone is over (`input`), prompt and requested output together (`input_plus_output`), or the
    text does not say (`unknown`). `limit_of` tells what `limit` bounds. `requested` is what was asked for in the
    same measure as `limit`; `exact` is False for a lower bound ("at least") or a rounded estimate, which must
    never be learned from. `over_by` is the surplus where only that is stated. `input` and `output` are the two
    parts where the provider splits them.
    """

    kind: str = "unknown"
    limit: int | None = None
    requested: int | None = None
    limit_of: str = "total"
    exact: bool = True
    over_by: int | None = None
    input: int | None = None
    output: int | None = None


class TooLong(UpstreamError):
    """An overflow. `said` tells whether data frames had reached the client: then it can only be passed on."""

    status = 400
    type = "invalid_request_error"
    code = "context_length_exceeded"

    def __init__(self, overflow: Overflow, *, said: bool = False, upstream_status: int | None = None) -> None:
        super().__init__("The prompt exceeds the model's context window.", upstream_status=upstream_status)
        self.overflow = overflow
        self.said = said


class GatewayError(WeirgateError):
    pass


class StoreUnavailable(GatewayError):
    status = 503
    code = "storage_unavailable"
    retry = True


class ShuttingDown(GatewayError):
    status = 503
    code = "shutting_down"
    retry = True


class Internal(GatewayError):
    pass


class ClientLeft(Exception):
    """The client closed its connection. `said` tells whether any data frame had reached it."""

    def __init__(self, *, said: bool) -> None:
        super().__init__("the client left")
        self.said = said
