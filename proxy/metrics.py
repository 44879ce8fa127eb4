"""What is counted, in Prometheus' terms. Base units, closed label sets.

Labels are never a tenant, key, user, conversation or a name that a client chose: `model` is the entry of the
configuration that served the call. A call counts in a dozen places, so counting is adding to a plain number; the
library makes its metrics of them when it is asked to (it counts under a lock, at ten times the price). All counting
is done on the event loop, and so is the reading. The library is imported at the first scrape: with its own HTTP server
it weighs more than all that is counted here, and who is not scraped needs none of it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from proxy.core.usage import UsageRow

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

    _Made = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FILL = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)


class Count:
    """A number that grows; as a gauge, one that also falls."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Spread:
    """How observations are spread over buckets; each counts in the first whose bound it does not exceed."""

    __slots__ = ("bounds", "counts", "created", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


_Kind = Literal["counter", "gauge", "histogram"]

C = TypeVar("C", Count, Spread)


class Family(Generic[C]):
    """The children of one metric, by the values of its labels."""

    def __init__(self, name: str, about: str, labels: tuple[str, ...], make: Callable[[], C]) -> None:
        self.name = name
        self.about = about
        self.names = labels
        self.children: dict[tuple[str, ...], C] = {}
        self._make: Callable[[], C] = make
        if not labels:
            self.labels()

    def labels(self, *values: str) -> C:
        found = self.children.get(values)
        if found is None:
            assert len(values) == len(self.names), self.name
            found = self.children[values] = self._make()
        return found


class _Bound:
    """The children of one (model, upstream) pair: looking one up costs more than counting."""

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
        self._families: list[tuple[_Kind, Family[Count] | Family[Spread]]] = []
        self.requests = self._counter("weirgate_requests", "Client requests by route and status.", "route", "status")
        self.request_seconds = self._histogram(
            "weirgate_request_seconds", "Client requests from head to last byte.", _WHOLE, "route"
        )
        self.in_flight = self._gauge("weirgate_in_flight", "Requests being served.")
        self.first_token = self._histogram(
            "weirgate_first_token_seconds", "From the upstream call to its first data frame.", _FIRST, "model"
        )
        self.upstream_seconds = self._histogram(
            "weirgate_upstream_seconds", "Upstream calls from start to end.", _WHOLE, "model", "upstream"
        )
        self.upstream_calls = self._counter(
            "weirgate_upstream_calls", "Upstream calls by purpose and outcome.", "upstream", "purpose", "status"
        )
        self.tokens = self._counter("weirgate_tokens", "Tokens by kind.", "model", "kind")
        self.cost = self._counter("weirgate_cost_dollars", "Cost of upstream calls.", "model")
        self.window_fill = self._histogram(
            "weirgate_window_fill_ratio", "Prompt size as a share of the window.", _FILL, "model"
        )
        self.compactions = self._counter("weirgate_compactions", "New compactions by what set them off.", "trigger")
        self.summaries = self._counter(
            "weirgate_summaries", "Calls of summary models by outcome: accepted, or why not.", "outcome"
        )
        self.paused = self._counter(
            "weirgate_paused_calls", "Calls on branches where compaction does less than usual, by why.", "why"
        )
        self.overflows = self._counter(
            "weirgate_overflows", "Overflows by outcome: recovered or reached_client.", "outcome"
        )
        self.repairs = self._counter("weirgate_repaired_messages", "Messages repaired before sending.").labels()
        self.unremembered = self._counter(
            "weirgate_unremembered_calls", "Calls served while the store was down."
        ).labels()
        self.reloads = self._counter(
            "weirgate_config_reloads", "Reloads of policies, agents and skills by result.", "result"
        )
        self.reload_ok = self._gauge(
            "weirgate_config_last_reload_successful", "Whether policies, agents and skills are what stands on disk."
        )
        self.reload_ok.value = 1.0
        self._bound: dict[tuple[str, str], _Bound] = {}

    def row(self, row: UsageRow, model: str) -> None:
        """Count a closed usage row; `model` is the configuration's entry that served it."""
        bound = self._bound.get((model, row.upstream))
        if bound is None:
            bound = self._bound[model, row.upstream] = _Bound(self, model, row.upstream)
        self.upstream_calls.labels(row.upstream, row.purpose, row.status).value += 1
        if row.duration is not None:
            bound.whole.observe(row.duration)
        if row.first_token is not None:
            bound.first.observe(row.first_token)
        if row.paused:
            self.paused.labels(row.paused).value += 1
        if row.window and row.projected:
            bound.fill.observe(row.projected / row.window)
        bound.input.value += row.input
        bound.output.value += row.output
        bound.cached.value += row.cached
        if row.cost:
            bound.cost.value += row.cost / 1e9

    @cached_property
    def registry(self) -> CollectorRegistry:
        """The library's, with these metrics in it."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """All of it, as the library's registry asks for it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        make = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        for kind, family in self._families:
            made = make[kind](family.name, family.about, labels=family.names)
            for values, child in family.children.items():
                _add(made, dict(zip(family.names, values, strict=True)), child)
            yield made

    def _counter(self, name: str, about: str, *labels: str) -> Family[Count]:
        family = Family(name, about, labels, Count)
        self._families.append(("counter", family))
        return family

    def _gauge(self, name: str, about: str) -> Count:
        family = Family(name, about, (), Count)
        self._families.append(("gauge", family))
        return family.labels()

    def _histogram(self, name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Family[Spread]:
        family = Family(name, about, labels, lambda: Spread(bounds))
        self._families.append(("histogram", family))
        return family


def _add(made: _Made, labels: dict[str, str], child: Count | Spread) -> None:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    values = list(labels.values())
    if isinstance(made, HistogramMetricFamily):
        assert isinstance(child, Spread)
        bounds = (*map(floatToGoString, child.bounds), "+Inf")
        made.add_metric(values, list(zip(bounds, accumulate(child.counts), strict=True)), child.total)
        made.add_sample(f"{made.name}_created", labels, child.created)
    elif isinstance(child, Count):
        if isinstance(made, CounterMetricFamily):
            made.add_metric(values, child.value, child.created)
        else:
            made.add_metric(values, child.value)
