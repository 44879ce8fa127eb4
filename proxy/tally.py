"""What one call adds to the metrics: how long its stages took, what its compactions came to, what was not read again.

The driver says what happens, here is what it counts as. One per call. Never: performing anything, or deciding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxy.core import benefit
from proxy.core.errors import TooLong, WindowExceeded
from proxy.core.guards import Guard, stopped
from proxy.core.notes import Compaction
from proxy.core.policy import Tariff
from proxy.core.steps import Anchor, Claim, Outcome, Prompt, Report
from proxy.core.usage import UsageRow
from proxy.metrics import Bound


class Tally:
    """One call, of those that are `bound` together. `clock` tells seconds that never jump."""

    __slots__ = ("_bound", "_cause", "_clock", "_ended", "_left", "_struck", "before", "known", "planning")

    def __init__(self, bound: Bound, clock: Callable[[], float]) -> None:
        self._bound = bound
        self._clock = clock
        self._ended = clock()
        """When the last stage ended: the call came in, or an upstream call was over."""
        self._left = bound.metrics.prepare
        """The stage that the next upstream call ends."""
        self.planning = ""
        """What will have come of the compaction that is under way, if nothing more happens; "": none is."""
        self.before: Anchor | None = None
        """What the last call on this branch left."""
        self.known: tuple[Compaction, ...] = ()
        """The compactions that were recalled."""

    # -- stages ------------------------------------------------------------------------------------------------------

    def answered(self, row: UsageRow, began: float, prompt: Prompt, tariff: Tariff | None) -> None:
        """An upstream call that began at `began` is over, and its row closed."""
        bound = self._bound
        metrics = bound.metrics
        self._left.observe(began - self._ended)
        self._ended = began + (row.duration or 0.0)
        self._left = metrics.between
        metrics.count(row, bound)
        # In the modes that only watch, nothing was done to the prompt that could tell.
        if not row.input or row.estimated or row.mode != "enforce":
            return
        why, tokens = benefit.missed(row, prompt, self.before)
        bound.uncached[why].value += tokens
        lost = row.input - row.cached - tokens
        if lost > 0:
            bound.lost.value += lost
        if why == "compacted" and tariff is not None:
            bound.on_cache.value += benefit.rewritten(row, tariff) / 1e9
        if prompt.report.unread or prompt.report.trimmed:
            self._unread(prompt.report, tariff)

    def _unread(self, report: Report, tariff: Tariff | None) -> None:
        """What was not sent, and what it would have cost."""
        bound = self._bound
        notes, memory = benefit.unread(report)
        bound.by_notes.value += notes
        bound.by_memory.value += memory
        if tariff is not None:
            bound.saved.value += benefit.saved(notes + memory, tariff) / 1e9

    def repeated(self, allowed: bool) -> bool:
        """Whether it is made once more: the retry budget's word, handed through."""
        if not allowed:
            self._bound.budget_spent.value += 1.0
        return allowed

    def served(self, outcome: Outcome) -> None:
        """The call is answered."""
        metrics = self._bound.metrics
        if self._left is metrics.between:
            metrics.finish.observe(self._clock() - self._ended)
        if outcome.recoveries:
            self._bound.recovered.value += 1.0
        if outcome.report.repaired:
            metrics.repairs.value += outcome.report.repaired

    def failed(self, error: BaseException) -> None:
        """The call is refused, or nobody waits for it any more."""
        if isinstance(error, WindowExceeded | TooLong):
            self._bound.reached_client.value += 1.0

    # -- compactions -------------------------------------------------------------------------------------------------

    def claimed(self, step: Claim, first: bool) -> None:
        """A compaction begins; `first`: no other call was before us."""
        if self._left is self._bound.metrics.prepare:
            self._left = self._bound.metrics.compact
        self._cause, self.planning, self._struck = step.cause, "none" if first else "shared", False

    def recalled(self, found: Iterable[Compaction]) -> None:
        """The branch was claimed, and its compactions are recalled once more: `found` are those there are now."""
        if self.planning == "none" and not {made.id for made in found} <= {made.id for made in self.known}:
            self.planning = "shared"

    def summarised(self, outcome: str) -> None:
        """A summary model was asked."""
        self._bound.metrics.summaries.labels(outcome).value += 1.0
        self._struck = outcome != "accepted"

    def compacted(self, made: Compaction, *, durable: bool) -> None:
        """Its notes are made, and stored if they are `durable`."""
        self.planning = "stored" if durable else "unstored"
        self._compaction("builtin" if made.writer == "builtin" else "model")
        sizes, model = self._bound.metrics.compaction_tokens, self._bound.model
        sizes.labels(model, "before").observe(made.before)
        sizes.labels(model, "after").observe(made.after)

    def planned(self) -> None:
        """The planning is over: a compaction that was begun and stored nothing came to nothing."""
        self._compaction("none")

    def _compaction(self, writer: str) -> None:
        outcome, self.planning = self.planning, ""
        self._bound.metrics.compactions.labels(self._bound.model, self._cause, writer, outcome).value += 1.0
        if self._struck:
            self._bound.strikes.value += 1.0

    def guarded(self, guard: Guard, failure_limit: int) -> None:
        """Whether compaction has just begun to do less on this branch."""
        was = self.before.guard if self.before is not None else None
        why = stopped(guard, failure_limit)
        if why and (was is None or why != stopped(was, failure_limit)):
            self._bound.metrics.pauses.labels(why).value += 1.0
