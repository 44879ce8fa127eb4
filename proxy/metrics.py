"""What is counted: every metric of the gateway, by name. Base units, closed label sets.

Labels are never a tenant, key, user, conversation or a name that a client chose: `model` is the entry of the
configuration that served the call, and what only the entry for everything else serves is `other`. How numbers are kept
and scraped stands in `counted`; which of them a call adds to, in `tally`. A call counts in two dozen places, so each
looks up nothing that could have been bound beforehand.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from proxy import __version__
from proxy.core import benefit
from proxy.core.usage import UsageRow
from proxy.counted import OTHER, Count, Families

MODELS: Final = 200
"""Pairs of model and upstream that are told apart; of a larger configuration the rest is `other`."""

_FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_BETWEEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_WHOLE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 420, 600)
_ADDED: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120)
_FILL: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
_TOKENS: Final = (256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576, 4194304)

_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "upstream_unreachable": "unreachable",
        "upstream_timeout": "timeout",
        "upstream_invalid_response": "invalid",
        "upstream_rate_limited": "rate_limited",
        "upstream_overloaded": "overloaded",
        "upstream_auth_failed": "key_refused",
        "invalid_api_key": "key_refused",
        "insufficient_quota": "no_credit",
        "context_length_exceeded": "overflow",
        "upstream_error": "failed",
        "internal_error": "ours",
    }
)
"""Our error codes by class; all others are the provider's reasons to reject a request."""


class Bound:
    """The children of one (model, upstream) pair: looking one up costs more than counting. Those that every call may
    add to are made at once, so that what has not happened yet is 0 and not absent."""

    def __init__(self, metrics: Metrics, model: str, upstream: str) -> None:
        self.metrics = metrics
        self.model = model
        self.first = metrics.first_token.labels(model, upstream)
        self.pace = metrics.inter_token.labels(model, upstream)
        self.whole = metrics.upstream_seconds.labels(model, upstream)
        self.fill = metrics.window_fill.labels(model)
        self.input = metrics.tokens.labels(model, "input")
        self.output = metrics.tokens.labels(model, "output")
        self.cached = metrics.tokens.labels(model, "cached")
        self.written = metrics.tokens.labels(model, "cache_write")
        self.reasoning = metrics.tokens.labels(model, "reasoning")
        self.cost = metrics.cost.labels(model)
        self.unpriced = metrics.unpriced.labels(model)
        self.saved = metrics.saved.labels(model)
        self.on_summaries = metrics.spent.labels(model, "summaries")
        self.on_cache = metrics.spent.labels(model, "cache")
        self.by_notes = metrics.unread.labels(model, "compaction")
        self.by_memory = metrics.unread.labels(model, "memory")
        whys: tuple[benefit.Why, ...] = ("first", "grown", "compacted", "changed", "lost")
        self.uncached: Mapping[benefit.Why, Count] = {why: metrics.uncached.labels(model, why) for why in whys}
        self.lost = self.uncached["lost"]
        self.recovered = metrics.overflows.labels(model, "recovered")
        self.reached_client = metrics.overflows.labels(model, "reached_client")
        self.strikes = metrics.strikes.labels(model)
        self.budget_spent = metrics.retries_refused.labels(upstream)
        self.ok = metrics.upstream_calls.labels(upstream, "chat", "ok")


class Metrics(Families):
    """All metrics of one process."""

    def __init__(self) -> None:
        super().__init__()
        self._bound: dict[tuple[str, str], Bound] = {}
        self.watch: Callable[[UsageRow], None] | None = None
        """Is told every closed row, too."""
        build = self.gauge("weirgate_build_info", "1; the version that runs, and on which Python.", "version", "python")
        build.labels(__version__, platform.python_version()).value = 1.0
        self._clients()
        self._upstreams()
        self._context()
        self._store_and_configuration()

    def _clients(self) -> None:
        self.requests = self.counter("weirgate_requests", "Client requests by route and status.", "route", "status")
        self.request_seconds = self.histogram(
            "weirgate_request_seconds", "Client requests from head to last byte.", _WHOLE, "route"
        )
        self.in_flight = self.gauge("weirgate_in_flight", "Requests being served.").labels()
        added = self.histogram(
            "weirgate_added_seconds",
            "Time of ours in a call, by stage: decode; then up to the first upstream call prepare, or compact where a "
            "compaction was made or waited for; between one upstream call and the next; finish, until all is durable.",
            _ADDED,
            "stage",
        )
        self.decode, self.prepare = added.labels("decode"), added.labels("prepare")
        self.compact, self.between = added.labels("compact"), added.labels("between")
        self.finish = added.labels("finish")
        self.repairs = self.counter("weirgate_repaired_messages", "Messages repaired before sending.").labels()

    def _upstreams(self) -> None:
        self.first_token = self.histogram(
            "weirgate_first_token_seconds",
            "From the upstream call to its first data frame, in streams that a client reads.",
            _FIRST,
            "model",
            "upstream",
        )
        self.inter_token = self.histogram(
            "weirgate_inter_token_seconds",
            "Mean time between two output tokens of a stream.",
            _BETWEEN,
            "model",
            "upstream",
        )
        self.upstream_seconds = self.histogram(
            "weirgate_upstream_seconds", "Upstream calls from start to end.", _WHOLE, "model", "upstream"
        )
        self.upstream_calls = self.counter(
            "weirgate_upstream_calls", "Upstream calls by purpose and outcome.", "upstream", "purpose", "status"
        )
        self.upstream_errors = self.counter(
            "weirgate_upstream_errors", "Upstream calls that failed, by class of error.", "upstream", "class"
        )
        self.retries_refused = self.counter(
            "weirgate_retries_refused", "Calls that were not repeated because the retry budget was spent.", "upstream"
        )
        self.tokens = self.counter(
            "weirgate_tokens",
            "Tokens by kind; cached and cache_write are part of input, reasoning of output.",
            "model",
            "kind",
        )
        self.cost = self.counter("weirgate_cost_dollars", "Cost of upstream calls.", "model")
        self.unpriced = self.counter("weirgate_unpriced_calls", "Upstream calls that no price is known for.", "model")

    def _context(self) -> None:
        self.window_fill = self.histogram(
            "weirgate_window_fill_ratio", "Prompt size as a share of the window.", _FILL, "model"
        )
        self.overflows = self.counter(
            "weirgate_overflows", "Calls that overflowed, by outcome: recovered or reached_client.", "model", "outcome"
        )
        self.compactions = self.counter(
            "weirgate_compactions",
            "Compactions by trigger (auto, recovered, manual, memory), writer of the notes (model, builtin, none) and "
            "outcome: stored, unstored, none where no notes could be made, shared where another call made them.",
            "model",
            "trigger",
            "writer",
            "outcome",
        )
        self.compaction_tokens = self.histogram(
            "weirgate_compaction_tokens", "Size of prompts before and after a compaction.", _TOKENS, "model", "moment"
        )
        self.summaries = self.counter(
            "weirgate_summaries", "Calls of summary models by outcome: accepted, or why not.", "outcome"
        )
        self.summaries.labels("accepted")
        self.summary_seconds = self.histogram(
            "weirgate_summariser_seconds", "Calls of summary models from start to end.", _WHOLE, "model"
        )
        self.strikes = self.counter(
            "weirgate_compaction_strikes", "Compactions for which no narrative of a model was accepted.", "model"
        )
        self.pauses = self.counter(
            "weirgate_compaction_pauses", "Branches on which compaction began to do less than usual, by why.", "why"
        )
        self.paused = self.counter(
            "weirgate_paused_calls", "Calls on branches where compaction does less than usual, by why.", "why"
        )
        for why in ("no_notes", "still_above", "model_failures"):
            self.pauses.labels(why)
            self.paused.labels(why)
        self.unread = self.counter(
            "weirgate_unread_tokens", "Tokens that compaction and memory kept away from providers.", "model", "by"
        )
        self.uncached = self.counter(
            "weirgate_uncached_tokens", "Prompt tokens not read from the provider's cache, by why.", "model", "why"
        )
        self.saved = self.counter("weirgate_saved_dollars", "What unread tokens would have cost at the least.", "model")
        self.spent = self.counter(
            "weirgate_spent_dollars", "What compaction cost: calls for summaries, and cache re-written.", "model", "on"
        )
        self.references = self.counter(
            "weirgate_references_read", "Whole results that models asked for, by outcome: found or missing.", "outcome"
        )
        self.found, self.missing = self.references.labels("found"), self.references.labels("missing")

    def _store_and_configuration(self) -> None:
        seconds = self.histogram(
            "weirgate_store_seconds",
            "What a call waited for the store, by operation: recall. (Writing is the stage finish of added seconds.)",
            _ADDED,
            "operation",
        )
        self.recall = seconds.labels("recall")
        self.shed = self.counter(
            "weirgate_shed_requests", "Calls refused unread because the process has too much to do."
        ).labels()
        self.breaker_state = self.gauge(
            "weirgate_upstream_breaker_state", "Of the breaker: 0 closed, 1 half open, 2 open.", "upstream"
        )
        self.store_waiting = self.gauge(
            "weirgate_store_waiting", "Calls that are answered once their rows are durable."
        ).labels()
        self.store_failures = self.counter("weirgate_store_failures", "Times that the store failed a call.").labels()
        self.unremembered = self.counter(
            "weirgate_unremembered_calls", "Calls served while the store was down."
        ).labels()
        self.reloads = self.counter(
            "weirgate_config_reloads", "Reloads of policies, agents and skills by result.", "result"
        )
        for result in ("taken", "refused"):
            self.reloads.labels(result)
        self.reload_ok = self.gauge(
            "weirgate_config_last_reload_successful", "Whether policies, agents and skills are what stands on disk."
        ).labels()
        self.reload_ok.value = 1.0
        self.reloaded_at = self.gauge(
            "weirgate_config_last_reload_success_timestamp_seconds",
            "When policies, agents and skills were last taken into use.",
        ).labels()
        self.reloaded_at.value = time.time()

    def of(self, model: str, upstream: str) -> Bound:
        """Where calls are counted that the configuration's entry `model` leads to `upstream`."""
        bound = self._bound.get((model, upstream))
        if bound is None:
            known = model != "*" and len(self._bound) < MODELS
            bound = self._bound[model, upstream] = Bound(self, model if known else OTHER, upstream)
        return bound

    def row(self, row: UsageRow, model: str) -> None:
        """Count a closed usage row; `model` is the configuration's entry that served it."""
        self.count(row, self.of(model, row.upstream))

    def count(self, row: UsageRow, bound: Bound) -> None:
        """Count a closed usage row of those that are `bound` together."""
        if row.purpose == "chat" and row.status == "ok":
            bound.ok.value += 1.0
        else:
            self.upstream_calls.labels(row.upstream, row.purpose, row.status).value += 1
        if row.purpose == "compaction":
            self._summary(row, bound)
        elif row.window and row.projected:
            bound.fill.observe(row.projected / row.window)
        if row.duration is not None:
            bound.whole.observe(row.duration)
            if row.stream and row.first_token is not None and row.purpose != "compaction":
                bound.first.observe(row.first_token)
                if row.output > 1:
                    bound.pace.observe((row.duration - row.first_token) / (row.output - 1))
        if row.error and row.status != "ok":  # else it is why a narrative was not taken
            self.upstream_errors.labels(row.upstream, _CLASSES.get(row.error, "rejected")).value += 1
        if row.paused:
            self.paused.labels(row.paused).value += 1
        bound.input.value += row.input
        bound.output.value += row.output
        if row.cached:
            bound.cached.value += row.cached
        if row.cache_write:
            bound.written.value += row.cache_write
        if row.reasoning:
            bound.reasoning.value += row.reasoning
        if row.cost:
            bound.cost.value += row.cost / 1e9
        elif row.unpriced:
            bound.unpriced.value += 1.0
        if self.watch is not None:
            self.watch(row)

    def _summary(self, row: UsageRow, bound: Bound) -> None:
        if row.duration is not None:
            self.summary_seconds.labels(bound.model).observe(row.duration)
        if row.cost:
            bound.on_summaries.value += row.cost / 1e9
