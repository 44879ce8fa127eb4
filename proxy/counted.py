"""Numbers that are counted, and the form in which Prometheus reads them.

Belongs here: what a counter, a gauge and a histogram are, the bound on their series, and the text that is scraped.
Never: what is counted (`metrics`). Counting is adding to a plain number that the caller was bound to beforehand; the
library makes its metrics of them when it is asked to (it counts under a lock, at ten times the price). All counting is
done on the event loop, and so is the reading. The library is imported at the first scrape: with its own HTTP server it
weighs more than all that is counted here, and who is not scraped needs none of it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

    _Made = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

OTHER: Final = "other"
"""The label of what has no name of its own."""
MOST: Final = 2_000
"""Children of one metric; what comes later is counted as `other`, whatever it is."""


class Count:
    """A number that grows; as a gauge, one that also falls."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Spread:
    """How observations are spread over buckets; each counts in the first whose bound it does not exceed.

    They wait for `sort_in`, which whoever observes sees to: to look for the bucket of each costs six times as much."""

    __slots__ = ("_counts", "_total", "_waiting", "bounds", "created", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.created = time.time()
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._waiting: list[float] = []
        self.observe: Final[Callable[[float], None]] = self._waiting.append

    def read(self) -> tuple[list[int], float]:
        """How many fell into each bucket, the last of which has no bound; and their sum."""
        self.sort_in()
        return self._counts, self._total

    def sort_in(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        waiting.sort()
        self._total += sum(waiting)
        before = 0
        for place, bound in enumerate(self.bounds):
            behind = bisect_right(waiting, bound, before)
            self._counts[place] += behind - before
            before = behind
        self._counts[-1] += len(waiting) - before
        waiting.clear()


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
            if len(self.children) >= MOST:
                values = (OTHER,) * len(values)
            found = self.children.setdefault(values, self._make())
        return found


class Families:
    """The metrics of one process, and their exposition."""

    def __init__(self) -> None:
        self._families: list[tuple[_Kind, Family[Count] | Family[Spread]]] = []

    def counter(self, name: str, about: str, *labels: str) -> Family[Count]:
        family = Family(name, about, labels, Count)
        self._families.append(("counter", family))
        return family

    def gauge(self, name: str, about: str, *labels: str) -> Family[Count]:
        family = Family(name, about, labels, Count)
        self._families.append(("gauge", family))
        return family

    def histogram(self, name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Family[Spread]:
        family = Family(name, about, labels, lambda: Spread(bounds))
        self._families.append(("histogram", family))
        return family

    def sort_in(self) -> None:
        """Sort in what was observed: now and then, so that what waits stays small."""
        for _, family in self._families:
            for child in family.children.values():
                if isinstance(child, Spread):
                    child.sort_in()

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


def _add(made: _Made, labels: dict[str, str], child: Count | Spread) -> None:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    values = list(labels.values())
    if isinstance(made, HistogramMetricFamily):
        assert isinstance(child, Spread)
        counts, total = child.read()
        bounds = (*map(floatToGoString, child.bounds), "+Inf")
        made.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
        made.add_sample(f"{made.name}_created", labels, child.created)
    elif isinstance(child, Count):
        if isinstance(made, CounterMetricFamily):
            made.add_metric(values, child.value, child.created)
        else:
            made.add_metric(values, child.value)
