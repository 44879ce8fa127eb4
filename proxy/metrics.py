"""What is counted, in Prometheus' terms. Base units, closed label sets.

Labels are never a tenant, key, user, conversation or a name that a client chose: `model` is the entry of the
configuration that served the call. Children are bound once per label set, since looking one up costs more than
counting.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.core.usage import UsageRow

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FILL = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)


class _Bound:
    """The children of one (model, upstream) pair."""

    def __init__(self, metrics: Metrics, model: str, upstream: str) -> None:
        self.first = metrics.first_token.labels(model)
        self.whole = metrics.upstream_seconds.labels(model, upstream)
        self.fill = metrics.window_fill.labels(model)
        self.input = metrics.tokens.labels(model, "input")
        self.output = metrics.tokens.labels(model, "output")
        self.cached = metrics.tokens.labels(model, "cached")
        self.cost = metrics.cost.labels(model)


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "weirgate_requests", "Client requests by route and status.", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "weirgate_request_seconds",
            "Client requests from head to last byte.",
            ["route"],
            buckets=_WHOLE,
            registry=registry,
        )
        self.in_flight = Gauge("weirgate_in_flight", "Requests being served.", registry=registry)
        self.first_token = Histogram(
            "weirgate_first_token_seconds",
            "From the upstream call to its first data frame.",
            ["model"],
            buckets=_FIRST,
            registry=registry,
        )
        self.upstream_seconds = Histogram(
            "weirgate_upstream_seconds",
            "Upstream calls from start to end.",
            ["model", "upstream"],
            buckets=_WHOLE,
            registry=registry,
        )
        self.upstream_calls = Counter(
            "weirgate_upstream_calls",
            "Upstream calls by purpose and outcome.",
            ["upstream", "purpose", "status"],
            registry=registry,
        )
        self.tokens = Counter("weirgate_tokens", "Tokens by kind.", ["model", "kind"], registry=registry)
        self.cost = Counter("weirgate_cost_dollars", "Cost of upstream calls.", ["model"], registry=registry)
        self.window_fill = Histogram(
            "weirgate_window_fill_ratio",
            "Prompt size as a share of the window.",
            ["model"],
            buckets=_FILL,
            registry=registry,
        )
        self.compactions = Counter(
            "weirgate_compactions", "New compactions by what set them off.", ["trigger"], registry=registry
        )
        self.overflows = Counter(
            "weirgate_overflows", "Overflows by outcome: recovered or reached_client.", ["outcome"], registry=registry
        )
        self.repairs = Counter("weirgate_repaired_messages", "Messages repaired before sending.", registry=registry)
        self.unremembered = Counter(
            "weirgate_unremembered_calls", "Calls served while the store was down.", registry=registry
        )
        self.reloads = Counter("weirgate_config_reloads", "Policy reloads by result.", ["result"], registry=registry)
        self.reload_ok = Gauge(
            "weirgate_config_last_reload_successful", "Whether the last policy reload was taken.", registry=registry
        )
        self.reload_ok.set(1)
        self._bound: dict[tuple[str, str], _Bound] = {}

    def row(self, row: UsageRow, model: str) -> None:
        """Count a closed usage row; `model` is the configuration's entry that served it."""
        bound = self._bound.get((model, row.upstream))
        if bound is None:
            bound = self._bound[model, row.upstream] = _Bound(self, model, row.upstream)
        self.upstream_calls.labels(row.upstream, row.purpose, row.status).inc()
        if row.duration is not None:
            bound.whole.observe(row.duration)
        if row.first_token is not None:
            bound.first.observe(row.first_token)
        if row.window and row.projected:
            bound.fill.observe(row.projected / row.window)
        bound.input.inc(row.input)
        bound.output.inc(row.output)
        bound.cached.inc(row.cached)
        if row.cost:
            bound.cost.inc(row.cost / 1e9)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
