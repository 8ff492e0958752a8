"""Metrics of a server, for Prometheus.

No label contains what a client has chosen. Labels are routes, kinds of locks, and the placements and
directories of the settings.
"""

from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dibs.core.names import KINDS, WAIT, split_key
from dibs.model import Command, Reply
from dibs.server.api.routing import Operation
from dibs.server.lock_events import LockEvent

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_WAITS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_COMMANDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_KINDS = {kind.encode(): kind for kind in KINDS}
_KINDS_OF_COMMANDS = _KINDS | {split_key(WAIT)[0].encode(): split_key(WAIT)[0]}


class Metrics:
    """All metrics of one server, in a registry of its own.

    `directories` are counted separately, and `place_of` returns the placement of a key. The other functions
    return current values: leases and waiters as far as this server knows, open streams,
    the age of the known keys in seconds, and whether the server is about to stop.
    """

    def __init__(
        self,
        directories: Iterable[str],
        place_of: Callable[[bytes], str],
        *,
        leases: Callable[[], float],
        waiters: Callable[[], float],
        streams: Callable[[], float],
        keys_age: Callable[[], float],
        draining: Callable[[], float],
    ) -> None:
        names = {f"{name.strip('/')}/" for name in directories}
        self._directories = [(name.encode(), name) for name in sorted(names, key=len, reverse=True)]
        """The innermost first."""
        self._place_of = place_of
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._requests = cache(
            Counter(
                "dibs_requests",
                "Requests that have ended; status 499: the client hung up",
                ("method", "route", "status"),
                registry=registry,
            ).labels
        )
        self._seconds = cache(
            Histogram(
                "dibs_request_seconds",
                "How long requests took, including time in the queue, without streams",
                ("method", "route"),
                registry=registry,
                buckets=_SECONDS,
            ).labels
        )
        self._commands = Counter(
            "dibs_commands",
            "Commands, by the store's reply; unavailable: it has not answered",
            ("command", "kind", "reply", "placement", "directory"),
            registry=registry,
        )
        self._command = cache(self._command_counter)
        self._batches = Histogram(
            "dibs_batch_commands",
            "Commands per batch",
            registry=registry,
            buckets=_COMMANDS,
        )
        self._waits = cache(
            Histogram(
                "dibs_wait_seconds",
                "How long holders waited in the queue, by grants through this server",
                ("kind",),
                registry=registry,
                buckets=_WAITS,
            ).labels
        )
        self._expired = cache(
            Counter(
                "dibs_expired_leases",
                "Expired leases that this server granted or renewed last",
                ("kind",),
                registry=registry,
            ).labels
        )
        for kind in KINDS:  # a counter whose first value is 1 shows no increase
            self._waits(kind)
            self._expired(kind)
        for name, text, read in (
            (
                "dibs_leases",
                "Unexpired leases granted or renewed by this server",
                leases,
            ),
            (
                "dibs_waiters",
                "Waiters queued through this server",
                waiters,
            ),
            ("dibs_streams", "Open streams", streams),
            ("dibs_keys_age_seconds", "Seconds since the API keys were last read", keys_age),
            ("dibs_draining", "1 while this server is shutting down", draining),
        ):
            Gauge(name, text, registry=registry).set_function(read)

    def request(self, operation: Operation | None, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        if operation is None:
            self._requests("", "", status).inc()
            return
        self._requests(operation.method, operation.path, status).inc()
        if not operation.is_stream:  # a stream takes as long as its client wants it
            self._seconds(operation.method, operation.path).observe(seconds)

    def command(self, command: Command, reply: Reply) -> None:
        """Count a command that was answered."""
        self._count(command, type(reply).__name__)

    def unanswered(self, command: Command) -> None:
        """Count a command that the store did not answer."""
        self._count(command, "unavailable")

    def _count(self, command: Command, reply: str) -> None:
        kind, name = command.key.partition(b":")[::2]
        place = self._place_of(command.key)
        words = type(command).__name__, _KINDS_OF_COMMANDS.get(kind, "other"), reply
        self._command(*words, place, self._directory(name)).inc()

    def event(self, event: LockEvent) -> None:
        """Count how long a new holder has waited, or that a lease has expired.

        Leases of other servers are not counted: they may have been renewed and released unseen.
        """
        if event.what == "expired" and event.is_own:
            self._expired(_kind_of(event)).inc()
        elif event.what == "granted" and event.waited is not None and not event.found:
            self._waits(_kind_of(event)).observe(event.waited)

    def _command_counter(
        self, command: str, kind: str, reply: str, place: str, directory: str
    ) -> Counter:
        return self._commands.labels(command.lower(), kind, reply.lower(), place, directory)

    def _directory(self, name: bytes) -> str:
        """The innermost directory that is counted separately; empty for none."""
        for directory, shown in self._directories:
            if name.startswith(directory):
                return shown
        return ""

    def batch(self, commands: int) -> None:
        """Count the commands of a batch."""
        self._batches.observe(commands)

    def shown(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


def _kind_of(event: LockEvent) -> str:
    return _KINDS.get(event.key.partition(b":")[0], "other")
