"""Workflows that hold permits, in either mode or in the guide's way. The sandbox loads them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.temporal.permit import Permit, PermitBlock
from dibs.temporal.semaphore import Lock, Semaphore
from tests.temporal.guide import GuideSemaphore


@dataclass
class Wish:
    """What a workflow is to do."""

    resource: str
    queue: str
    """The task queue of permits and brokers."""
    mode: str = "fair"
    """`fair`, `slot`, or `guide`."""
    capacity: int = 1
    hold: float | None = None
    """Seconds, or until signal `leave`."""
    busy: bool = False
    """Holds while the activity `busy` runs."""
    semaphore: dict[str, Any] = field(default_factory=dict[str, Any])
    acquire: dict[str, Any] = field(default_factory=dict[str, Any])
    runs: int = 1
    """Number of runs that hold the permit, one after the other."""
    handoff: dict[str, Any] | None = None
    since: float = 0.0
    """When the first run entered its block."""


@dataclass
class Held:
    token: int | None
    slots: list[str]
    run_id: str
    since: float
    until: float


def semaphore(wish: Wish) -> Semaphore:
    more = {"task_queue": wish.queue, "fair": wish.mode == "fair", **wish.semaphore}
    return Semaphore(wish.resource, capacity=wish.capacity, **more)


def acquire(wish: Wish) -> PermitBlock:
    pauses = {"backoff": 0.1, "max_backoff": 0.3} if wish.mode == "slot" else {}
    return semaphore(wish).acquire(**{"ttl": 10.0, **pauses, **wish.acquire})


@asynccontextmanager
async def block(wish: Wish) -> AsyncIterator[Permit | str]:
    if wish.mode == "guide":
        guide = GuideSemaphore(wish.resource, capacity=wish.capacity, task_queue=wish.queue)
        times = {"lease": timedelta(seconds=10), "backoff": timedelta(seconds=0.2)}
        async with guide.acquire(**times) as slot:
            yield slot
    else:
        async with acquire(wish) as permit:
            yield permit


class Flow:
    """Shows whether it holds, and what it noted; waits for a signal to leave."""

    def __init__(self) -> None:
        self.state = "new"
        self.leaving = False
        self.noted: list[str] = []

    @workflow.signal
    def leave(self) -> None:
        self.leaving = True

    @workflow.query
    def where(self) -> str:
        return self.state

    async def hold(self, wish: Wish, permit: Permit | str) -> Held:
        self.state = "holds"
        since = wish.since or workflow.time()
        if wish.busy:
            await workflow.execute_activity(
                "busy",
                args=[workflow.info().workflow_id, wish.hold],
                start_to_close_timeout=timedelta(seconds=30),
            )
        elif wish.hold is None:
            await workflow.wait_condition(lambda: self.leaving)
        elif wish.hold:
            await workflow.sleep(wish.hold)
        if not isinstance(permit, Permit):  # the guide's
            return Held(None, [permit], "", since, workflow.time())
        return Held(permit.token, list(permit.slots), permit.run_id, since, workflow.time())


@workflow.defn
class Holding(Flow):
    """Acquires, holds, leaves."""

    @workflow.run
    async def run(self, wish: Wish) -> Held:
        async with block(wish) as permit:
            return await self.hold(wish, permit)


@workflow.defn
class Several(Flow):
    """So many tasks of one workflow want the same."""

    @workflow.run
    async def run(self, wish: Wish, tasks: int) -> list[Held]:
        async def one() -> Held:
            async with acquire(wish) as permit:
                return await self.hold(wish, permit)

        return list(await asyncio.gather(*(one() for _ in range(tasks))))


@workflow.defn
class Relay(Flow):
    """Hands its permit to its next run."""

    @workflow.run
    async def run(self, wish: Wish) -> Held:
        entering = acquire(wish) if wish.handoff is None else semaphore(wish).reattach(wish.handoff)
        async with entering as permit:
            wish.since = wish.since or workflow.time()
            held = await self.hold(wish, permit)
            if wish.runs > 1:
                handoff = asdict(await permit.detach())
                workflow.continue_as_new(replace(wish, runs=wish.runs - 1, handoff=handoff))
        return held


@workflow.defn
class Interrupted(Flow):
    """A body that is cancelled in some way. Returns what it saw."""

    @workflow.init
    def __init__(self, wish: Wish, how: str) -> None:
        super().__init__()
        self.wish = wish

    @workflow.run
    async def run(self, wish: Wish, how: str) -> list[str]:
        await getattr(self, f"_{how}")()
        return self.noted

    async def _hold(self) -> None:
        async with block(self.wish) as permit:
            try:
                await self.hold(self.wish, permit)
            except asyncio.CancelledError:
                self.noted.append("cancelled")
                raise

    async def _early(self) -> None:
        """At each of the first steps of its acquire."""
        for steps in range(12):
            task = asyncio.create_task(self._hold())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await workflow.wait([task])
        async with acquire(self.wish):
            self.noted.append("free")

    async def _twice(self) -> None:
        """In its body, and again while it releases."""
        task = asyncio.create_task(self._hold())
        await workflow.wait_condition(lambda: self.state == "holds")
        task.cancel()
        await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except BaseException as error:
            self.noted.append(type(error).__name__)

    async def _timeout(self) -> None:
        try:
            async with asyncio.timeout(1):
                await self._hold()
        except TimeoutError:
            self.noted.append("timed out")

    async def _own_error(self) -> None:
        """The body fails by itself just as the permit is lost."""
        try:
            async with acquire(self.wish) as permit:
                try:
                    await self.hold(self.wish, permit)
                except asyncio.CancelledError:
                    self.noted.append(f"lost: {permit.reason}")
                    raise ApplicationError("its own") from None
        except ApplicationError as error:
            self.noted += [error.message, *getattr(error, "__notes__", ())]

    async def _swallowed(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with acquire(self.wish) as permit:
                try:
                    await self.hold(self.wish, permit)
                except asyncio.CancelledError:
                    self.noted.append("swallowed")
        except Exception as error:
            self.noted += [getattr(error, "reason", ""), str(task.cancelling())]
            await workflow.sleep(0.01)  # nothing is left of the cancellation


@workflow.defn
class Impatient(Flow):
    """Tries, waits for too long, and asks for what it has. Notes each answer or error."""

    @workflow.run
    async def run(self, wish: Wish) -> list[str]:
        if await semaphore(wish).try_acquire() is None:
            self.noted.append("none")
        try:
            async with asyncio.timeout(0.3):
                await acquire(wish)
        except TimeoutError:
            self.noted.append("timed out")
        own = replace(wish, resource=f"{wish.resource}-own")
        late = replace(wish, acquire={**wish.acquire, "wait": 0.1})
        permit = await semaphore(own).try_acquire(note="tried")
        assert permit is not None
        assert await semaphore(own).try_acquire() is None
        for each in (own, late):
            try:
                await acquire(each)
            except ApplicationError as error:
                self.noted.append(f"{error.type}: {error.message}")
        await permit.release()
        return self.noted


@workflow.defn
class Permits(Flow):
    """What can be done with a permit."""

    @workflow.run
    async def run(self, wish: Wish) -> list[Any]:
        lock = Lock(wish.resource, task_queue=wish.queue, fair=wish.mode == "fair")
        other = replace(wish, resource=f"{wish.resource}-other", capacity=2)
        async with lock as permit, acquire(other) as inner:
            permit.ensure(needs="1s")
            first = permit.token or 0
            found = [str(permit), int(inner) < 2, permit.lost, 500 < permit.remaining < 600]
        async with lock as permit:
            found.append(first < (permit.token or 0))
        try:
            permit.ensure()
        except ApplicationError as error:
            found.append(error.type)
        found += [permit.remaining, repr(permit).rpartition(", ")[2]]
        permit = await acquire(wish)
        before = permit.deadline
        await workflow.sleep(0.5)
        await permit.renew("20s")
        found.append(permit.deadline > before)
        try:
            permit.ensure(needs="1h")
        except ApplicationError as error:
            found.append("renew it first" in error.message)
        return [*found, await permit.release(), await permit.release()]


FLOWS = (Holding, Several, Relay, Interrupted, Impatient, Permits)
