"""What the provider did not have to read, what it had to read anew, and what both are in money.

Belongs here: arithmetic on one upstream call whose usage was reported. Never: counting it (`metrics`, `tally`).

The other way to have served the call is to send the whole history, as far as it fits the window, to a provider that
still has it in its prompt cache. So what notes and memory keep away is valued at the price of a cached token, the least
that it could have cost, and never as more than the window; where the provider prices no cache apart, at its input
price. Against it stand the calls of summary models (their rows say what they cost) and, with the first prompt that
holds new notes, every token that was not read from the cache. Left out, each for want of knowledge: what a cache that
had expired meanwhile would have cost (we saved more), the prompts that re-write the cache because memory moved its
boundaries or a fork went back (we saved less), fewer or more output tokens, and that without us the call might have
failed.
"""

from __future__ import annotations

from typing import Literal

from proxy.core.policy import Tariff
from proxy.core.steps import Anchor, Prompt, Report
from proxy.core.usage import UsageRow

Why = Literal["first", "grown", "compacted", "changed", "lost"]
"""Why tokens were not read from the provider's cache, as far as this side can tell:

    first      nothing of this conversation was sent there before
    grown      said since the last call
    compacted  behind other notes than in the last call
    changed    system messages, tools or the boundaries of memory are other than in the last call
    lost       sent before, with the same beginning, and not in the cache: it has expired, or there is none
"""


def unread(report: Report) -> tuple[int, int]:
    """Tokens that notes and that memory kept away from the provider, of what its window could have taken."""
    notes, memory = report.unread, report.trimmed
    if report.window is not None:
        room = max(0, report.window - report.tokens)
        memory = min(memory, room)
        notes = min(notes, room - memory)
    return max(0, notes), max(0, memory)


def saved(tokens: int, tariff: Tariff) -> int:
    """Nano-dollars that `tokens` which were not sent would have cost at the least."""
    return tokens * (tariff.input if tariff.cached is None else min(tariff.cached, tariff.input))


def rewritten(row: UsageRow, tariff: Tariff) -> int:
    """Nano-dollars more than a cache that knew the whole prompt would have cost, for a call behind new notes."""
    if tariff.cached is None:
        return 0
    uncached = max(0, row.input - row.cached)
    written = min(row.cache_write, uncached)
    plain = uncached - written
    dearer = (tariff.input if tariff.cache_write is None else tariff.cache_write) - tariff.cached
    return max(0, plain * (tariff.input - tariff.cached) + written * dearer)


def missed(row: UsageRow, prompt: Prompt, before: Anchor | None) -> tuple[Why, int]:
    """Why most of what was not read from the cache was not, and how many tokens are that; the others are `lost`.
    `before` is what the last call on this branch left."""
    uncached = max(0, row.input - row.cached)
    if before is None or not before.measured:
        return "first", uncached
    if before.compaction != prompt.report.compaction_id:
        return "compacted", uncached
    if before.shape != prompt.shape:
        return "changed", uncached
    return "grown", max(0, min(uncached, row.input - before.reported))
