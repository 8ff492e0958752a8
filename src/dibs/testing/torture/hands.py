"""What one task or thread of a worker can do, and how it writes down what it saw."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dibs.testing.history import Event
from dibs.testing.torture.worlds import Stopped

if TYPE_CHECKING:
    from dibs.testing.torture.worker import Worker

BRIEF = (0.0, 0.002), (75, 24)
LONG = (0.3, 1.2), (0.8, 0.2)
"""How long steps take and how often: in seconds, and in ttls."""


class Hand:
    """One of a worker's tasks or threads: it has one turn at a time."""

    def __init__(self, worker: "Worker", number: int) -> None:
        self.draw = random.Random(worker.orders.seed * 1_000 + number)  # noqa: S311
        self.interruptible = False
        """It waits in a queue, and may be called away."""
        self.primitive = ""
        """What its turn is on."""
        self.ttl = worker.orders.ttl
        self.patience = worker.orders.wait
        self.world = worker.world
        self._worker = worker
        self._recorder = worker.recorder
        self._held = 0
        self.now = worker.recorder.now

    async def get(self, value: Any) -> Any:
        """What a call of the public API has come to, in this hand's world."""
        return await self.world.get(value)

    # -- asking -------------------------------------------------------------------------------------

    def asking(self, *keys: bytes) -> float:
        """A call that waits begins; from here on it may be interrupted."""
        invoked = self._recorder.asked(*keys)
        self.interruptible = True
        if self._worker.stopping:
            self.interrupt()
        return invoked

    def interrupt(self) -> None:
        """Raise `Stopped`, if that is how to leave."""
        if self.interruptible:
            self.interruptible = False
            raise Stopped

    def granted(self, lease: Any, invoked: float, **what: Any) -> None:
        self.interruptible = False
        self._recorder.granted(lease, invoked, **what)
        self._held += 1
        self._worker.holds(self.primitive, +1)

    def gave_up(self, invoked: float, *keys: bytes) -> None:
        self.interruptible = False
        for key in keys:
            self._recorder.gave_up(key, invoked)

    def refused(self, invoked: float, key: bytes) -> None:
        self._recorder.refused(key, invoked)

    def cut_off(self) -> None:
        """The store was away: nobody can be served, and nothing is said about waiting."""
        self.interruptible = False
        self._recorder.record(Event(self.now(), "disturbed"))
        self._worker.cut_off()

    # -- holding ------------------------------------------------------------------------------------

    async def work(
        self, *leases: Any, writes: bool = True, lengths: Sequence[Any] = (BRIEF, LONG)
    ) -> None:
        """The body: check, work for a while, write. Raises `LeaseLost`."""
        (brief, how_brief), (long, how_long) = lengths
        choices = [*brief, *(ttls * self.ttl for ttls in long)]
        for _ in range(self.draw.randint(1, 3)):
            for lease in leases:
                self.check(lease)
            await self.world.sleep(self.draw.choices(choices, (*how_brief, *how_long))[0])
            for lease in leases if writes else ():
                self._worker.write(lease)

    def check(self, lease: Any) -> None:
        """Be told that it is held. Raises `LeaseLost`."""
        at = self.now()
        lease.ensure()
        self._recorder.renewed(lease)
        self._recorder.believed(lease, at)

    def resized(self, lease: Any, invoked: float, *, units: int, capacity: int) -> None:
        self._recorder.resized(lease, invoked, units=units, capacity=capacity)

    def shrinking(self, lease: Any, *, units: int, capacity: int) -> None:
        self._recorder.renewed(lease)
        self._recorder.shrinking(lease, units=units, capacity=capacity)

    def releasing(self, lease: Any) -> None:
        self._recorder.renewed(lease)  # whatever the keeper did during the last step
        self._recorder.releasing(lease)
        self._held -= 1
        self._worker.holds(self.primitive, -1, done=not self._held)
