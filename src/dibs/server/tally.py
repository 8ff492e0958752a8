"""Counters and histograms of one event loop: those of prometheus-client take a lock at each change."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally(Collector):
    """Counts by the values of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.counts: Counter[tuple[object, ...]] = Counter()
        self._about = (name, text, labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts, for prometheus-client."""
        name, text, labels = self._about
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in self.counts.items():
            family.add_metric([str(each) for each in values], count)
        yield family


class Distribution(Collector):
    """A histogram for each combination of values of labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._about = (name, text, labels)
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def begin(self, *values: str) -> None:
        """Show these values of the labels before the first `observe`."""
        self._counts[values] = [0] * (len(self._bounds) + 1)
        self._sums[values] = 0.0

    def observe(self, amount: float, *values: str) -> None:
        """Count an amount in its bucket."""
        if values not in self._sums:
            self.begin(*values)
        self._sums[values] += amount
        self._counts[values][bisect_left(self._bounds, amount)] += 1

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histograms, for prometheus-client."""
        name, text, labels = self._about
        family = HistogramMetricFamily(name, text, labels=labels)
        ends = [*(repr(float(each)) for each in self._bounds), "+Inf"]
        for values, counts in self._counts.items():
            buckets = list(zip(ends, accumulate(counts), strict=True))
            family.add_metric(values, buckets, self._sums[values])
        yield family
