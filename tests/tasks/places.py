"""Several processes that have the same tasks, each with a client and a clock of its own, in one loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import dibs
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.tasks import Tasks
from dibs.tasks.schedule import SECOND
from dibs.testing import ManualClock
from tests.runtime.stores import TappedStore

PATIENCE = 20.0
"""Real seconds within which what must happen happens."""


class Skewed:
    """A clock that is late (or early) by so many seconds."""

    def __init__(self, clock: ManualClock, late: float) -> None:
        self._clock = clock
        self._late = round(late * SECOND)
        self.now = clock.now
        self.at = clock.at

    def stamp(self) -> int:
        return self._clock.stamp() - self._late


class Cluster:
    """A store, a clock, and the schedulers that use them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        """Its wall clock starts at a full hour."""
        self.store: Any = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self.clients: list[Any] = []

    def client(self) -> tuple[TappedStore, dibs.Client]:
        """One of another process, and what travels from it."""
        store = TappedStore(store=self.store)
        client = dibs.Client(StoreSession(store, clock=self.clock))
        self.clients.append(client)
        return store, client

    def tasks(self, *, late: float = 0, **options: Any) -> Tasks:
        """A scheduler in a process of its own, with a clock that may differ."""
        return Tasks(client=self.client()[1], clock=Skewed(self.clock, late), **options)

    async def advance(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass, and what is due be done."""
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            seconds -= step
            await turn()

    @property
    def second(self) -> float:
        """Seconds since its clock began."""
        return self.clock.now() - 1000.0


async def turn() -> None:
    """Let the loop do what is ready."""
    for _ in range(50):
        await asyncio.sleep(0)


async def eventually(what: Callable[[], object]) -> None:
    """Wait for what threads do, while the clock stands still."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """One, whose clients are closed in the end."""
    made = Cluster()
    try:
        yield made
    finally:
        for client in made.clients:
            await client.close()
