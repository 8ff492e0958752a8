"""What a server counts and measures, for Prometheus.

No label has anything in it that a client has chosen: routes are those of the table, kinds are ours, and
placements and directories those of the settings. One event loop counts, so nothing needs a lock, and counting
costs no request anything to speak of.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from dibs.core.names import KINDS, WAIT, split_key
from dibs.model import Command, Reply
from dibs.server.api.routing import Operation
from dibs.server.auth.policy import Principal

if TYPE_CHECKING:
    from dibs.server.serve import Server
    from dibs.server.service import Service

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COMMANDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_KINDS = {kind.encode(): kind for kind in (*KINDS, split_key(WAIT)[0])}


class _Spread:
    """How many were how large."""

    __slots__ = ("_bounds", "_found", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._found = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self._found[bisect_left(self._bounds, value)] += 1
        self._total += value

    def show(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """In Prometheus' form, where each bound counts all that lies below it."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._found), strict=True))
        family.add_metric(labels, buckets, self._total)


class Metrics:
    """All of one server's, in a registry of their own."""

    def __init__(self, service: "Service", directories: Iterable[str] = ()) -> None:
        self._service = service
        names = {f"{name.strip('/')}/" for name in directories}
        self._directories = [(name.encode(), name) for name in sorted(names, key=len, reverse=True)]
        """Those that are told apart, the innermost first."""
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[tuple[str, str], _Spread] = {}
        self._commands: Counter[tuple[type, bytes, type, str, str]] = Counter()
        self._batches = _Spread(_COMMANDS)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(self)

    # -- counting -----------------------------------------------------------------------------------

    def request(self, route: Operation | None, status: int, seconds: float) -> None:
        """One has ended."""
        if route is None:
            self._requests["", "", status] += 1
            return
        place = route.method, route.path
        self._requests[*place, status] += 1
        if route.media == "text/event-stream":
            return  # it takes as long as its client wants it
        spread = self._seconds.get(place)
        if spread is None:
            spread = self._seconds[place] = _Spread(_SECONDS)
        spread.add(seconds)

    def command(self, _: Principal, command: Command, reply: Reply) -> None:
        """One was answered."""
        kind, name = command.key.partition(b":")[::2]
        kind = kind if kind in _KINDS else b""
        place = self._service.runtime.place_of(command.key)
        self._commands[type(command), kind, type(reply), place, self._directory(name)] += 1

    def _directory(self, name: bytes) -> str:
        """In which of those that are told apart it is."""
        for directory, shown in self._directories:
            if name.startswith(directory):
                return shown
        return ""

    def batch(self, commands: int) -> None:
        """So many travelled together."""
        self._batches.add(commands)

    # -- showing ------------------------------------------------------------------------------------

    def shown(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        yield self._requests_family()
        yield self._seconds_family()
        yield self._commands_family()
        batches = HistogramMetricFamily(
            "dibs_batch_commands", "How many commands travelled together"
        )
        self._batches.show(batches, ())
        yield batches
        yield from self._now()

    def _requests_family(self) -> Metric:
        family = CounterMetricFamily(
            "dibs_requests",
            "Requests that have ended; status 499: the client hung up",
            labels=("method", "route", "status"),
        )
        for (method, route, status), count in self._requests.items():
            family.add_metric((method, route, str(status)), count)
        return family

    def _seconds_family(self) -> Metric:
        family = HistogramMetricFamily(
            "dibs_request_seconds",
            "How long requests took, waits in line included, streams not",
            labels=("method", "route"),
        )
        for labels, spread in self._seconds.items():
            spread.show(family, labels)
        return family

    def _commands_family(self) -> Metric:
        family = CounterMetricFamily(
            "dibs_commands",
            "Commands that the store has answered, by what came of them",
            labels=("command", "kind", "reply", "placement", "directory"),
        )
        for (command, kind, reply, *where), count in self._commands.items():
            words = command.__name__.lower(), _KINDS.get(kind, "other"), reply.__name__.lower()
            family.add_metric((*words, *where), count)
        return family

    def _now(self) -> Iterator[Metric]:
        """What is so at this moment."""
        service = self._service
        census = service.quotas.census()
        yield GaugeMetricFamily(
            "dibs_leases",
            "Leases that stand, of those that were acquired or renewed at this server",
            census.leases,
        )
        yield GaugeMetricFamily(
            "dibs_waiters",
            "Places in line that live, of those that were taken at this server",
            census.places,
        )
        yield GaugeMetricFamily(
            "dibs_streams", "Streams that are open", len(list(service.post.streams))
        )
        yield GaugeMetricFamily(
            "dibs_keys_age_seconds",
            "Since when keys could not be looked up",
            service.keys.cache.stale_for,
        )
        yield GaugeMetricFamily("dibs_draining", "1: it is about to stop", service.drain.begun)


@asynccontextmanager
async def measured(server: "Server") -> AsyncGenerator[None]:
    """Measure as long as the server runs, unless its settings say otherwise."""
    service = server.service
    if server.config.metrics:
        metrics = service.metrics = Metrics(service, server.config.metrics_directories)
        service.meters.append(metrics.request)
        service.leases.observers.append(metrics.command)
        service.leases.batch_observers.append(metrics.batch)
    yield
