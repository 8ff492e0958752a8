"""Metrics of a server, for Prometheus.

No label contains what a client has chosen. Labels are routes, kinds of locks, and the placements and
directories of the settings.
"""

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    ProcessCollector,
    generate_latest,
)

from dibs.core.names import KINDS, WAIT, split_key
from dibs.model import Command, Reply
from dibs.server.api.routing import Operation
from dibs.server.auth.policy import Principal
from dibs.server.lock_events import LockEvent
from dibs.server.tally import Distribution, Tally

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_WAITS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_COMMANDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_KINDS = {kind.encode(): kind for kind in (*KINDS, split_key(WAIT)[0])}


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
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._requests = Tally(
            "dibs_requests",
            "Requests that have ended; status 499: the client hung up",
            ("method", "route", "status"),
        )
        self._seconds = Distribution(
            "dibs_request_seconds",
            "How long requests took, including time in the queue, without streams",
            ("method", "route"),
            _SECONDS,
        )
        self._commands = Tally(
            "dibs_commands",
            "Commands, by the store's reply; unavailable: it has not answered",
            ("command", "kind", "reply", "placement", "directory"),
        )
        self._batches = Distribution("dibs_batch_commands", "Commands per batch", (), _COMMANDS)
        self._waits = Distribution(
            "dibs_wait_seconds",
            "How long holders waited in the queue, by grants through this server",
            ("kind",),
            _WAITS,
        )
        self._expired = Tally(
            "dibs_expired_leases",
            "Expired leases that this server granted or renewed last",
            ("kind",),
        )
        self._batches.begin()
        for kind in KINDS:  # a counter whose first value is 1 shows no increase
            self._waits.begin(kind)
            self._expired.counts[(kind,)] = 0
        for tally in (
            *(self._requests, self._seconds, self._commands),
            *(self._batches, self._waits, self._expired),
        ):
            registry.register(tally)
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
            self._requests.counts["", "", status] += 1
            return
        self._requests.counts[operation.method, operation.path, status] += 1
        if not operation.is_stream:  # a stream takes as long as its client wants it
            self._seconds.observe(seconds, operation.method, operation.path)

    def command(self, _: Principal, command: Command, reply: Reply) -> None:
        """Count a command that was answered."""
        self._count(command, type(reply).__name__.lower())

    def unanswered(self, command: Command) -> None:
        """Count a command that the store did not answer."""
        self._count(command, "unavailable")

    def _count(self, command: Command, reply: str) -> None:
        words = type(command).__name__.lower(), _kind_of(command.key), reply
        place = self._place_of(command.key)
        self._commands.counts[*words, place, self._directory(command.key)] += 1

    def event(self, event: LockEvent) -> None:
        """Count how long a new holder has waited, or that a lease has expired.

        Leases of other servers are not counted: they may have been renewed and released unseen.
        """
        if event.what == "expired" and event.is_own:
            self._expired.counts[(_kind_of(event.key),)] += 1
        elif event.what == "granted" and event.waited is not None and not event.found:
            self._waits.observe(event.waited, _kind_of(event.key))

    def _directory(self, key: bytes) -> str:
        """The innermost directory that is counted separately; empty for none."""
        name = key.partition(b":")[2] if self._directories else b""
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


def _kind_of(key: bytes) -> str:
    return _KINDS.get(key.partition(b":")[0], "other")
