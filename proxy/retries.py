"""How many calls may be made once more: at most a share of them, so that a failing provider is not flooded by us.

Envoy's retry budget, with its minimum of three. Whether a single call is worth repeating is `gateway`'s question.
"""

from __future__ import annotations

from typing import Final

_LEAST: Final = 3
_KEPT: Final = 0.999
"""What is left of the past with each call: about the last thousand count."""


class Retries:
    """The budgets of this process, by upstream."""

    def __init__(self) -> None:
        self._budgets: dict[str, RetryBudget] = {}

    def of(self, upstream: str) -> RetryBudget:
        found = self._budgets.get(upstream)
        if found is None:
            found = self._budgets[upstream] = RetryBudget()
        return found


class RetryBudget:
    """The budget of one upstream."""

    def __init__(self) -> None:
        self._calls = 0.0
        self._repeats = 0.0

    def call(self) -> None:
        """A call that repeats none."""
        self._calls = self._calls * _KEPT + 1
        self._repeats *= _KEPT

    def allow(self, share: float) -> bool:
        """Whether one more may be a repeat, at most `share` of the calls; it is counted then."""
        if self._repeats >= _LEAST + share * self._calls:
            return False
        self._repeats += 1
        return True
