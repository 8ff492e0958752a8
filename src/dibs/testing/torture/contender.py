"""A task or thread of a worker that takes turns, and the side of the API that it uses: asyncio or threads."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Protocol

import dibs
import dibs.sync
from dibs.testing.history import HistoryEvent
from dibs.testing.recorder import RecordedLease, Recorder
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import SideName

BRIEF = (0.0, 0.002), (75, 24)
LONG = (0.3, 1.2), (0.8, 0.2)
"""Lengths of steps and their weights: in seconds, and in ttls."""


class Stopped(KeyboardInterrupt):
    """The worker is to stop, and this thread waited in a queue."""


class TortureSide:
    """How tasks, or threads, use the public API. Calls of threads have returned already."""

    def __init__(self, name: SideName) -> None:
        self._awaits = name == "asyncio"
        self.library: ModuleType = dibs if self._awaits else dibs.sync
        self.interrupted: type[BaseException] = asyncio.CancelledError if self._awaits else Stopped
        """Raised in a contender that is called away from a queue."""

    async def get(self, value: Any) -> Any:
        """Result of a call."""
        return await value if self._awaits else value

    async def sleep(self, seconds: float) -> None:
        """Sleep in this task or thread."""
        if self._awaits:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop here

    @asynccontextmanager
    async def block(self, manager: Any) -> AsyncGenerator[Any]:
        """Enter `manager`, with `async with` or `with`."""
        if self._awaits:
            async with manager as entered:
                yield entered
        else:
            with manager as entered:
                yield entered


class ContenderHost(Protocol):
    """The part of a worker that its contenders use."""

    orders: Orders
    side: TortureSide
    recorder: Recorder
    stopping: bool

    def write(self, lease: RecordedLease) -> None: ...
    def holds(self, primitive: str, change: int, *, done: bool = False) -> None: ...
    def cut_off(self) -> None: ...


class Contender:
    """A task or thread of a worker. It takes one turn at a time."""

    def __init__(self, worker: ContenderHost, number: int) -> None:
        self.draw: random.Random = random.Random(worker.orders.seed * 1_000 + number)  # noqa: S311
        self.interruptible: bool = False
        """It waits in a queue, and can be called away."""
        self.primitive: str = ""
        """Primitive of its current turn."""
        self.ttl: float = worker.orders.ttl
        self.patience: float = worker.orders.wait
        self.side: TortureSide = worker.side
        self._worker = worker
        self._recorder = worker.recorder
        self._held = 0
        self.now: Callable[[], float] = worker.recorder.now

    async def get(self, value: Any) -> Any:
        """Result of a call of the public API."""
        return await self.side.get(value)

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
        self._recorder.record(HistoryEvent(self.now(), "disturbed"))
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
            await self.side.sleep(self.draw.choices(choices, (*how_brief, *how_long))[0])
            for lease in leases if writes else ():
                self._worker.write(lease)

    def check(self, lease: Any) -> None:
        """Check that it is held. Raises `LeaseLost`."""
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
