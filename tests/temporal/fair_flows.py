"""Workflows that take permits from brokers. No I/O is imported here, so the sandbox loads it as it is."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from temporalio import workflow

from dibs.temporal.errors import AcquireTimedOut, AlreadyHeld
from dibs.temporal.permit import Permit
from dibs.temporal.semaphore import Semaphore


@dataclass
class Wish:
    """What a holder is to do."""

    resource: str
    capacity: int = 1
    hold: float | None = None
    """So many seconds, or until it is told to leave. A timer of the server may take a second longer."""
    semaphore: dict[str, Any] = field(default_factory=dict[str, Any])
    acquire: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Held:
    """How it went."""

    token: int
    slots: list[str]
    since: float
    until: float


class Flow:
    """Tells where it is, and can be told to go on."""

    def __init__(self) -> None:
        self.state = "new"
        self.told = False

    async def hold(self, wish: Wish, permit: Permit) -> Held:
        self.state = "holds"
        since = workflow.time()
        if wish.hold is None:
            await workflow.wait_condition(lambda: self.told)
        elif wish.hold:
            await workflow.sleep(wish.hold)
        assert permit.token is not None
        return Held(permit.token, list(permit.slots), since, workflow.time())


def fair(wish: Wish) -> Semaphore:
    """On the queue that this workflow is on."""
    more = {"task_queue": workflow.info().task_queue, "fair": True, **wish.semaphore}
    return Semaphore(wish.resource, capacity=wish.capacity, **more)


@workflow.defn
class Holding(Flow):
    """Acquires, holds, leaves."""

    @workflow.signal
    def leave(self) -> None:
        self.told = True

    @workflow.query
    def where(self) -> str:
        return self.state

    @workflow.run
    async def run(self, wish: Wish) -> Held:
        async with fair(wish).acquire(**wish.acquire) as permit:
            return await self.hold(wish, permit)


@workflow.defn
class TwoTasks(Flow):
    """Two tasks of one workflow want the same."""

    @workflow.run
    async def run(self, wish: Wish) -> list[Held]:
        async def one() -> Held:
            async with fair(wish).acquire(**wish.acquire) as permit:
                return await self.hold(wish, permit)

        return list(await asyncio.gather(one(), one()))


@workflow.defn
class TwoSemaphores(Flow):
    """Two resources, one in the other; the inner one for two tasks."""

    @workflow.run
    async def run(self, wish: Wish) -> list[Held]:
        inner = Wish(f"{wish.resource}-inner", capacity=2, hold=wish.hold)

        async def one() -> Held:
            async with fair(inner).acquire() as permit:
                return await self.hold(inner, permit)

        async with fair(wish) as permit:
            first = await self.hold(wish, permit)
            return [first, *await asyncio.gather(one(), one())]


@workflow.defn
class Patience(Flow):
    """Tries, waits for too long, asks for what it has, and gives up: each with its error."""

    @workflow.init
    def __init__(self, wish: Wish) -> None:
        super().__init__()
        self.found: list[str] = []

    @workflow.query
    def so_far(self) -> list[str]:
        return self.found

    @workflow.run
    async def run(self, wish: Wish) -> None:
        found = self.found
        if await fair(wish).try_acquire() is None:
            found.append("none")
        try:
            async with asyncio.timeout(0.3):
                await fair(wish).acquire()
        except TimeoutError as error:
            found.append(type(error).__name__)
        try:
            await fair(wish).acquire(wait=0.1)
        except AcquireTimedOut as error:
            found.append(f"{error.position}: {error}")
        other = Wish(f"{wish.resource}-other")
        async with fair(other):
            try:
                await fair(other).acquire()
            except AlreadyHeld as error:
                found.append(str(error))
        await fair(wish).acquire(wait=0.1)


@workflow.defn
class Trying(Flow):
    """Takes some units if they are free, for a reason, and leaves the rest alone."""

    @workflow.run
    async def run(self, wish: Wish, units: int) -> list[str]:
        permit = await fair(wish).try_acquire(units=units, priority=5, note="tried")
        if permit is None:
            return []
        slots = list(permit.slots)
        assert permit.reason is None
        assert await fair(wish).try_acquire(units=wish.capacity) is None
        await permit.release()
        return slots


@workflow.defn
class Siblings(Flow):
    """One task of a group fails while another waits, and then while another holds."""

    @workflow.run
    async def run(self, wish: Wish, mine: str) -> list[str]:
        found = []
        for resource, then in ((wish.resource, "waits"), (mine, "holds")):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hold(Wish(resource)))
                    await workflow.wait_condition(lambda then=then: self.state == then)  # type: ignore[misc]
                    await workflow.sleep(0.3)
                    raise ValueError("of a sibling")
            except ExceptionGroup as group_error:
                found.append(f"{self.state}: {group_error.exceptions}")
        async with fair(Wish(mine)).acquire(wait=5):
            found.append("free")
        return found

    async def _hold(self, wish: Wish) -> None:
        self.state = "waits"
        async with fair(wish) as permit:
            await self.hold(wish, permit)


@workflow.defn
class Relay(Flow):
    """Hands its permit to its next run, as often as told."""

    @workflow.signal
    def leave(self) -> None:
        self.told = True

    @workflow.query
    def where(self) -> str:
        return self.state

    @workflow.run
    async def run(self, wish: Wish, runs: int, handoff: dict[str, Any] | None = None) -> Held:
        semaphore = fair(wish)
        entering = semaphore.reattach(handoff) if handoff else semaphore.acquire(**wish.acquire)
        async with entering as permit:
            found = await self.hold(wish, permit)
            if runs > 1:
                workflow.continue_as_new(args=[wish, runs - 1, await permit.detach()])
        return found


@workflow.defn
class Steady(Flow):
    """Holds for many times its ttl, and looks at its permit; the second time nobody renews it."""

    @workflow.run
    async def run(self, wish: Wish) -> list[Any]:
        async with fair(wish).acquire(ttl=3) as permit:
            deadline = permit.deadline
            await workflow.sleep(5)
            await permit.renew()
            found: list[Any] = [permit.lost, permit.deadline > deadline, permit.remaining > 1]
        try:
            async with fair(wish).acquire(ttl=1, auto_renew=False):
                await workflow.sleep(10)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        return found


FLOWS = [Holding, TwoTasks, TwoSemaphores, Patience, Trying, Siblings, Relay, Steady]
