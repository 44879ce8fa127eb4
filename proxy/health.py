"""How an upstream does: what its last calls came to, and whether it is left alone for a while (`core.breaker`).

Belongs here: what counts as a failure of an upstream, and what its operator is shown. A failure is one of transport or
of the 5xx kind: what a provider says of the request (4xx) is an answer, and a rate limit (429), which is counted apart,
is no reason to send nothing to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from proxy.core.breaker import Breaker, Recent, Rules
from proxy.core.errors import CircuitOpen
from proxy.core.usage import UsageRow
from proxy.counted import Count

FAILURES: Final = frozenset(
    "upstream_unreachable upstream_timeout upstream_invalid_response upstream_error upstream_overloaded".split()
)
"""Error codes of rows."""
_LIMITED: Final = "upstream_rate_limited"
_STATES: Final = ("closed", "half_open", "open")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of an upstream. `last_error` is the code of its latest failure, at unix seconds."""

    state: str
    calls: int
    failures: int
    rate_limited: int
    last_error: str | None
    last_error_at: float | None


class UpstreamHealth:
    """One upstream's. `gauge` is set to 0 while the breaker is closed, 1 half open, 2 open; without rules it never
    opens."""

    def __init__(self, name: str, rules: Rules | None, gauge: Count, clock: Callable[[], float]) -> None:
        self.name = name
        self._clock = clock
        self._gauge = gauge
        self._recent = Recent()
        self._breaker = Breaker(rules, self._recent) if rules is not None else None
        self._limited = Recent()
        self._error: str | None = None
        self._error_at: float | None = None
        self.doubted = False
        """Whether it may be left alone: else there is nothing to `check`, and nobody wants what is `heard`."""

    def check(self) -> None:
        """Raises CircuitOpen where no call may be made."""
        breaker = self._breaker
        wait = breaker.wait(self._clock()) if breaker is not None else 0.0
        self._show()
        if wait:
            message = "The upstream keeps failing and is left alone for a moment."
            raise CircuitOpen(message, sent=False, retry_after=wait)

    def heard(self, began: float, status: int) -> None:
        """The head of an answer is here."""
        breaker = self._breaker
        if breaker is not None and status < 500:
            breaker.heard(began, self._clock())
            self._show()

    def ended(self, began: float, row: UsageRow) -> None:
        """A call that began at `began` is over, and `row` closed."""
        now, error, breaker, recent = self._clock(), row.error, self._breaker, self._recent
        if now >= recent.until:
            recent.turn(now)
        recent.calls += 1
        if error is None and row.status == "ok" and not self.doubted and (breaker is None or not breaker.in_a_row):
            return
        failed = error in FAILURES
        recent.failures += failed
        if error is not None:
            self._note(error, now, row)
        if breaker is None:
            return
        if failed:
            breaker.failed(began, now)
        elif row.status == "cancelled":
            breaker.abandoned(began)
        else:
            breaker.succeeded(began, now)
        self._show()

    def condition(self) -> Condition:
        now = self._clock()
        calls, failures = self._recent.within(now)
        return Condition(
            state=self._breaker.state if self._breaker is not None else "off",
            calls=calls,
            failures=failures,
            rate_limited=self._limited.within(now)[0],
            last_error=self._error,
            last_error_at=self._error_at,
        )

    def _note(self, error: str, now: float, row: UsageRow) -> None:
        if error == _LIMITED:
            self._limited.add(now, True)
        if error == _LIMITED or error in FAILURES:
            self._error, self._error_at = error, row.opened_at + (row.duration or 0.0)

    def _show(self) -> None:
        if self._breaker is not None:
            self.doubted = self._breaker.state != "closed"
            self._gauge.value = float(_STATES.index(self._breaker.state))
