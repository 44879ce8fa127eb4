"""Chapter 2.4 of docs/failure-modes.md: recognising an overflow, and what is none."""

from __future__ import annotations

from tests.mutations.listed import Mutation

OVERFLOW, ATTEMPT = "proxy/core/overflow.py", "proxy/attempt.py"

MUTATIONS = (
    Mutation("F40", OVERFLOW, "full = total >= _FULL * window if window", "full = total < 0 if window"),
    Mutation(
        "F41", "proxy/core/branch.py", 'learned=Limits(total=cut, source="learned") if cut else None', "learned=None"
    ),
    Mutation(
        "F42",
        ATTEMPT,
        "            return TooLong(found, said=self.said, upstream_status=broke.status)\n",
        '            return InvalidReply("broken")\n',
    ),
    Mutation("F43", OVERFLOW, "or PHRASES.search(evidence.text) is not None", "or not evidence"),
    Mutation(
        "F44",
        OVERFLOW,
        "if status in VETO_STATUSES or VETO_STATUSES & evidence.statuses:",
        "if status in VETO_STATUSES and not evidence.text:",
    ),
    Mutation(
        "F45",
        ATTEMPT,
        'self._check_elsewhere(body)\n            raise InvalidReply("The upstream answered a',
        'raise InvalidReply("The upstream answered a',
    ),
    Mutation(
        "F46",
        "proxy/core/branch.py",
        "reported=reported if trusted else report.tokens,",
        "reported=min(reported, 4000),",
    ),
    Mutation(
        "F47",
        "proxy/core/exchange.py",
        "raise _final(branch, prompt, refused.overflow) from refused",
        "raise",
    ),
)
