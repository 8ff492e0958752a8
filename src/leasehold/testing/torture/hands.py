"""What one task or thread of a worker does: ask, check, write, release, and write down what it saw."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leasehold.testing.history import Event

if TYPE_CHECKING:
    from leasehold.testing.torture.worker import Worker


class Stopped(KeyboardInterrupt):
    """Told to stop while waiting in a queue."""


class Hand:
    """One of a worker's tasks or threads: it has one turn at a time."""

    def __init__(self, worker: "Worker", number: int) -> None:
        self.draw = random.Random(worker.orders.seed * 1_000 + number)  # noqa: S311
        self.interruptible = False
        """It waits in a queue, and may be called away."""
        self._worker = worker
        self._recorder = worker.recorder

    def asking(self, key: bytes) -> float:
        """A call that waits begins; from here on it may be interrupted."""
        invoked = self._recorder.asked(key)
        self.interruptible = True
        if self._worker.stopping:
            self.interrupt()
        return invoked

    def interrupt(self) -> None:
        """Raise `Stopped`, if that is how to leave."""
        if self.interruptible:
            self.interruptible = False
            raise Stopped

    def granted(self, lease: Any, invoked: float, capacity: int) -> None:
        self._recorder.granted(lease, invoked, capacity=capacity)
        self._worker.holds(+1)

    def gave_up(self, key: bytes, invoked: float) -> None:
        self.interruptible = False
        self._recorder.gave_up(key, invoked)

    def cut_off(self) -> None:
        """The store was away: nobody can be served, and nothing is said about waiting."""
        self.interruptible = False
        self._recorder.record(Event(self._recorder.now(), "disturbed"))
        self._worker.holds(0, cut_off=1)

    def steps(self, lease: Any) -> Iterator[float]:
        """The body: check, work for as many seconds as are yielded, write."""
        ttl = self._worker.orders.ttl
        for _ in range(self.draw.randint(1, 3)):
            at = self._recorder.now()
            lease.ensure()
            self._recorder.renewed(lease)
            self._recorder.believed(lease, at)
            lengths = (0.0, 0.002, 0.3 * ttl, 1.2 * ttl)
            yield self.draw.choices(lengths, (75, 24, 0.8, 0.2))[0]
            self._worker.pair(lease).write(lease)

    def releasing(self, lease: Any) -> None:
        self._recorder.renewed(lease)  # whatever the keeper did during the last step
        self._recorder.releasing(lease)
        self._worker.holds(-1, done=1)
