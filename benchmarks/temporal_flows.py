"""The ways to a lock on Temporal, and the workflows and activities that take them."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow

from benchmarks import temporal_contended
from dibs.temporal import Lock, Semaphore, current_lock, needs_lock
from tests.temporal.guide import GuideSemaphore

GUIDE = "the guide's semaphore"
SLOT, UNARMED = "Semaphore", "Semaphore, armed=False"
FAIR, FAIR_LOCK = "Semaphore, fair", "Lock, fair"
PLAIN, PLAIN_LOCK = "Semaphore, temporal://", "Lock, temporal://"
ACTIVITY = "@needs_lock, Redis"
BARE = temporal_contended.BARE
"""Of the contended case only: the same steps without a lock."""
IN_WORKFLOWS = (GUIDE, SLOT, UNARMED, FAIR, FAIR_LOCK)
IN_PYTHON = (PLAIN, PLAIN_LOCK)
WAYS = (*IN_WORKFLOWS, *IN_PYTHON, ACTIVITY, BARE)

BACKOFF = 1.0
HOLD = 0.5


@dataclass
class Ask:
    """How a workflow is to get its permit."""

    way: str
    resource: str
    queue: str


@dataclass
class Timed:
    """What a workflow has seen, in milliseconds, and the number of its last event before that."""

    acquire: list[float]
    release: list[float]
    before: int


def entered(ask: Ask) -> Any:
    """A block that holds a permit."""
    if ask.way == GUIDE:
        semaphore = GuideSemaphore(ask.resource, capacity=1, task_queue=ask.queue)
        backoff = timedelta(seconds=BACKOFF)
        return semaphore.acquire(lease=timedelta(minutes=10), backoff=backoff)
    ours: Semaphore
    if ask.way == FAIR_LOCK:
        ours = Lock(ask.resource, task_queue=ask.queue, fair=True)
    else:
        how: dict[str, Any] = {"fair": ask.way == FAIR, "armed": ask.way != UNARMED}
        ours = Semaphore(ask.resource, capacity=1, task_queue=ask.queue, **how)
    if ask.way in (FAIR, FAIR_LOCK):
        return ours.acquire(ttl="10m")
    return ours.acquire(ttl="10m", backoff=BACKOFF, max_backoff=BACKOFF)


@workflow.defn
class Cycles:
    """Acquires and releases what nobody else wants; the first time is to warm up."""

    @workflow.run
    async def run(self, ask: Ask, cycles: int) -> Timed:
        async with entered(ask):
            pass
        timed = Timed([], [], workflow.info().get_current_history_length())
        for _ in range(cycles):
            begun = workflow.time()  # the server's, so a replay gives the same
            async with entered(ask):
                got = workflow.time()
            timed.acquire.append((got - begun) * 1e3)
            timed.release.append((workflow.time() - got) * 1e3)
        return timed


@workflow.defn
class Holds:
    """Holds a permit until it is told, or while one activity runs."""

    def __init__(self) -> None:
        self.holding = self.enough = False

    @workflow.run
    async def run(self, ask: Ask, activity_name: str) -> None:
        async with entered(ask):
            self.holding = True
            if activity_name:
                await workflow.execute_activity(
                    activity_name, start_to_close_timeout=timedelta(minutes=1)
                )
            else:
                await workflow.wait_condition(lambda: self.enough)

    @workflow.update
    async def until_held(self) -> None:
        """Until it has it."""
        await workflow.wait_condition(lambda: self.holding)

    @workflow.signal
    def leave(self) -> None:
        """It is enough."""
        self.enough = True


@workflow.defn
class Runs:
    """Runs an activity so many times; how long each took or waited, in milliseconds."""

    @workflow.run
    async def run(self, activity_name: str, times: int) -> list[float]:
        took = []
        for _ in range(times):
            begun = workflow.time()
            waited: float | None = await workflow.execute_activity(
                activity_name, schedule_to_close_timeout=timedelta(minutes=1)
            )
            took.append((workflow.time() - begun if waited is None else waited) * 1e3)
        return took


class Work:
    """The activities, and when those that hold something held it."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    async def hold(self) -> None:
        """Holds it for half a second."""
        begun = perf_counter()
        await asyncio.sleep(HOLD)
        self.spans.append((begun, perf_counter()))

    def activities(self, redis: str) -> list[Any]:
        """Bare ones, and ones that need a lock."""

        @activity.defn(name="bare")
        async def bare() -> None:
            pass

        @activity.defn(name="locked")
        @needs_lock(f"free-{uuid4().hex}", backend=redis)
        async def locked() -> float:
            return current_lock().waited

        @activity.defn(name="holding")
        async def holding() -> None:
            await self.hold()

        @activity.defn(name="locked holding")
        @needs_lock(f"wanted-{uuid4().hex}", backend=redis)
        async def locked_holding() -> None:
            await self.hold()

        return [bare, locked, holding, locked_holding]
