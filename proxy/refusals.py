"""What a provider's refusal means to our client: the rows of the error contract that begin with a provider's status.

Source: research/reliability.md 4.3. A provider's own words are passed on short and redacted, where the fault may be the
client's; where it is ours or the provider's they help nobody and may hold a key.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

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
from proxy.core.redaction import redacted

_SECONDS: Final = re.compile("[0-9]{1,6}")
_SAFE_CODES: Final = frozenset(
    "invalid_request_error invalid_value unsupported_parameter unsupported_value missing_required_parameter "
    "invalid_type model_not_found content_filter string_above_max_length invalid_image_url rate_limit_exceeded".split()
)


def refusal(status: int, body: bytes, *, own_key: bool, retry_after: str | None = None) -> WeirgateError:
    """Our error for a provider's answer other than 200 that is no overflow. `own_key`: the key was the gateway's."""
    told = provider_words(body)
    wait = float(retry_after) if retry_after is not None and _SECONDS.fullmatch(retry_after) else None
    if status in (401, 403):
        if own_key:
            return KeyRefused("The upstream refused the gateway's key.", upstream_status=status)
        return Unauthorised("The upstream refused this API key.")
    if status == 402:
        return OutOfCredit("The upstream wants payment: its credit is used up.", upstream_status=status)
    if status == 429:
        return RateLimited("The upstream's rate limit is reached.", upstream_status=status, retry_after=wait)
    if status in (503, 529):
        return Overloaded("The upstream is overloaded.", upstream_status=status, retry_after=wait)
    if status == 404:
        return ModelUnknown(f"The upstream does not know this model: {told}", upstream_status=404, param="model")
    if 400 <= status < 500:
        code = _safe_code(body)
        return Rejected(f"The upstream rejected the request ({status}): {told}", upstream_status=status, code=code)
    if 300 <= status < 400:
        return InvalidReply("The upstream answered with a redirect, which is not followed.", upstream_status=status)
    return UpstreamError(f"The upstream failed with status {status}.", upstream_status=status)


def provider_words(body: bytes) -> str:
    """A provider's own words in an error body, redacted and short."""
    message: object = None
    try:
        value = msgspec.json.decode(body[: 1 << 16])
        error = value.get("error", value) if isinstance(value, dict) else value
        message = error.get("message", "") if isinstance(error, dict) else error
    except (msgspec.DecodeError, RecursionError, AttributeError):
        message = body[:400].decode("utf-8", "replace")
    return redacted(message) if isinstance(message, str) and message else "no reason given"


def _safe_code(body: bytes) -> str | None:
    """The provider's code, where it is one that clients know."""
    try:
        value = msgspec.json.decode(body[: 1 << 16])
        code = value["error"]["code"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) and code in _SAFE_CODES else None
