"""Several processes that have the same tasks, each with a client and a clock of its own, in one loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import current_lease
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.tasks import TaskRouter, Tasks, TaskStatus
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

    def tapped(self, *, late: float = 0, **options: Any) -> tuple[TappedStore, Tasks]:
        """A scheduler in a process of its own, with a clock that may differ, and its store."""
        store, client = self.client()
        return store, Tasks(client=client, clock=Skewed(self.clock, late), **options)

    def tasks(self, **options: Any) -> Tasks:
        """A scheduler in a process of its own."""
        return self.tapped(**options)[1]

    async def advance(self, seconds: float, step: float = 5.0) -> None:
        """Let time pass, from one multiple of a step to the next, and what is due be done."""
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 0:
            self.clock.advance(min(step - self.second % step, left))
            await turn()

    @property
    def second(self) -> float:
        return self.clock.now() - 1000.0


async def turn() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def eventually(what: Callable[[], object]) -> None:
    """Wait for what threads do, while the clock stands still."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.005)


class Job:
    """A task that writes down when and where it ran, and can be made to take its time."""

    def __init__(self, place: Cluster) -> None:
        self.place = place
        self.ran: list[tuple[str, float]] = []
        self.ticks: list[tuple[str, float]] = []
        """Which of them were run, in seconds."""
        self.tokens: list[int] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    def on[T: Tasks | TaskRouter](self, tasks: T, where: str = "", **options: Any) -> T:
        async def job() -> None:
            self.ran.append((where, self.place.second))
            if isinstance(tasks, Tasks) and (tick := status(tasks).last_tick):
                self.ticks.append((where, tick.timestamp() - 1_800_000_000))
            if not options.get("everywhere"):
                self.tokens.append(current_lease().token)
            await self.may_end.wait()

        tasks.every(options.pop("every", "60s"), name="job", **options)(job)
        return tasks

    @property
    def seconds(self) -> list[float]:
        return [second for _, second in self.ran]


def status(tasks: Tasks, name: str = "job") -> TaskStatus:
    return tasks.status()[name]


def counts(tasks: Tasks) -> tuple[int, int, int, int]:
    it = status(tasks)
    return it.won, it.elsewhere, it.skipped, it.missed


@pytest.fixture
async def place() -> AsyncIterator[Cluster]:
    """Processes that share a store in memory, under a clock that is moved by hand."""
    made = Cluster()
    yield made
    for client in made.clients:
        await client.close()


@pytest.fixture
def job(place: Cluster) -> Job:
    return Job(place)
