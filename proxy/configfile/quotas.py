"""The keys of limits in configuration, and of a breaker: names, ranges and defaults.

Belongs here: what each key may say, and the value of the core that it makes. Never: counting, or whose limits they are.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from proxy.configfile.fields import Count, Positive, Section, Share, number, switch
from proxy.core.breaker import Rules
from proxy.core.quota import Quota

NANO: Final = 10**9
"""Nano-dollars of a dollar."""

_LATEST: Final = 1e12

Limit = Annotated[int, Field(ge=0, le=10**15), BeforeValidator(number)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), BeforeValidator(number)]


def moment(value: object) -> object:
    """Unix seconds of a date, or of a time (UTC unless it says otherwise); a number is taken as it is."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("should be a date or time, such as 2027-01-31 or 2027-01-31T18:00:00Z") from None
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    value = number(value)
    if isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < _LATEST):
        raise ValueError("should be a date or time")
    return value


Expiry = Annotated[
    float, BeforeValidator(moment, json_schema_input_type=str | float), Field(json_schema_extra={"format": "date-time"})
]


class LimitSettings(Section):
    """What a key may use. Each limit that is not stated here is that of `key_limits`, or none."""

    requests_per_minute: Limit | None = None
    """Requests within any sixty seconds, for each replica."""
    requests_per_day: Limit | None = None
    """Requests that reached a provider within a day (UTC), of all replicas together."""
    tokens_per_minute: Limit | None = None
    """Input and output tokens within any sixty seconds, for each replica."""
    tokens_per_day: Limit | None = None
    """Input and output tokens within a day (UTC), of all replicas together."""
    cost_per_day: Dollars | None = None
    """Dollars within a day (UTC), of all replicas together. Models without a price cost nothing."""
    streams: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(number)] | None = None
    """Requests served at once, for each replica; instead of server.limits.streams_per_key."""
    expires: Expiry | None = None
    """A date or time (UTC unless it says otherwise) from which on the key opens nothing."""
    stopped: bool | None = None
    """Whether every request is refused."""

    def quota(self) -> Quota:
        """The same for the core."""
        said = self.model_dump(exclude={"cost_per_day"})
        return Quota(**said, cost_per_day=None if self.cost_per_day is None else round(self.cost_per_day * NANO))


class BreakerSettings(Section):
    """When an upstream that fails is left alone: its calls are answered with 503 at once then. Failures are those of
    transport and statuses from 500 on, never what it says of a request (4xx) nor its rate limits (429)."""

    consecutive: Count = 10
    """Failures in a row that open it."""
    failures: Count = 20
    """Failures within the time below that open it, where they are so large a share of the calls."""
    share: Share = 0.5
    """Share of the calls that ended within this time."""
    within: Annotated[float, Field(ge=1, le=60, allow_inf_nan=False), BeforeValidator(number)] = 10.0
    """Seconds."""
    pause: Positive = 15.0
    """Seconds until a single call is let through to see whether it has recovered."""

    def rules(self) -> Rules:
        """The same for the core."""
        return Rules(**self.model_dump())


Breaking = Annotated[BreakerSettings | None, switch(BreakerSettings)]
