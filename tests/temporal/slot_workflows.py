"""Holders for tests of slot mode, each in the guide's way and in ours. Loaded in Temporal's sandbox."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from dibs.errors import LeaseLost
from dibs.temporal.errors import PermitLost
from dibs.temporal.permit import Permit
from dibs.temporal.semaphore import Lock, Semaphore
from tests.temporal.guide import GuideSemaphore


@dataclass
class Spec:
    """What a holder is to do."""

    resource: str
    queue: str
    """Of the permits."""
    way: str = "ours"
    capacity: int = 1
    hold: float = 0.1
    work: str = "sleep"
    """`sleep`, `gate` (until signal `go`), or the name of an activity that gets `hold`."""
    semaphore: dict[str, Any] = field(default_factory=dict[str, Any])
    acquire: dict[str, Any] = field(default_factory=dict[str, Any])
    attempts: int = 1
    start_to_close: float = 30.0
    heartbeat: float | None = None
    wait_for_cancelled: bool = False
    runs: int = 1
    """So many runs hold it, one after the other."""
    gap: bool = False
    """Each of them but the first waits for signal `go` before it does anything."""
    handoff: dict[str, Any] | None = None
    entered: float = 0.0
    """When the first of them began to."""


@dataclass
class Held:
    """When, in the workflow's time, and what it was."""

    slot: str
    entered: float
    left: float
    token: int | None = None
    run_id: str = ""


@asynccontextmanager
async def block(spec: Spec) -> AsyncIterator[Permit | str]:
    """The guide's or ours."""
    if spec.way == "guide":
        guide = GuideSemaphore(spec.resource, capacity=spec.capacity, task_queue=spec.queue)
        lease = timedelta(seconds=spec.acquire.get("ttl", 10.0))
        backoff = timedelta(seconds=spec.acquire.get("backoff", 0.3))
        async with guide.acquire(lease=lease, backoff=backoff) as slot:
            yield slot
    else:
        async with semaphore(spec).acquire(**acquire(spec)) as permit:
            yield permit


def semaphore(spec: Spec) -> Semaphore:
    return Semaphore(spec.resource, capacity=spec.capacity, task_queue=spec.queue, **spec.semaphore)


def acquire(spec: Spec) -> dict[str, Any]:
    return {"ttl": 10.0, "backoff": 0.3, **spec.acquire}


class Gated:
    """A workflow that goes on at a signal."""

    def __init__(self) -> None:
        self.gone_on = 0
        self.inside = False
        self.seen: list[str] = []

    @workflow.signal
    def go(self) -> None:
        self.gone_on += 1

    @workflow.query
    def entered(self) -> bool:
        return self.inside

    @workflow.query
    def log(self) -> list[str]:
        return self.seen

    async def gap(self, spec: Spec) -> None:
        if spec.gap and spec.entered:
            await workflow.wait_condition(lambda: self.gone_on > 0)

    async def work(self, spec: Spec) -> None:
        match spec.work:
            case "sleep":
                await workflow.sleep(spec.hold)
            case "gate":
                await workflow.wait_condition(lambda: self.gone_on > 0)
            case activity:
                cancellation = (
                    workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
                    if spec.wait_for_cancelled
                    else workflow.ActivityCancellationType.TRY_CANCEL
                )
                await workflow.execute_activity(
                    activity,
                    args=[workflow.info().workflow_id, spec.hold],
                    start_to_close_timeout=timedelta(seconds=spec.start_to_close),
                    heartbeat_timeout=timedelta(seconds=spec.heartbeat) if spec.heartbeat else None,
                    retry_policy=RetryPolicy(
                        maximum_attempts=spec.attempts,
                        initial_interval=timedelta(milliseconds=100),
                    ),
                    cancellation_type=cancellation,
                )


def _held(got: Permit | str, entered: float, left: float) -> Held:
    if not isinstance(got, Permit):
        return Held(got, entered, left)
    return Held(got.slot, entered, left, got.token, got.run_id)


@workflow.defn
class Holder(Gated):
    """Holds once, and does its work meanwhile."""

    @workflow.init
    def __init__(self, spec: Spec) -> None:
        super().__init__()

    @workflow.run
    async def run(self, spec: Spec) -> Held:
        async with block(spec) as got:
            entered = workflow.time()
            self.inside = True
            try:
                await self.work(spec)
            finally:
                # not after the release: the next may be there before our next task
                left = workflow.time()
                self.seen.append("left the body")
        return _held(got, entered, left)


@workflow.defn
class TwoTasks(Gated):
    """One task outstays its lease; then the other of the same workflow has the slot."""

    @workflow.init
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.overtaken = False

    @workflow.run
    async def run(self, spec: Spec) -> list[float]:
        """When the second has left, in its own view."""
        first = asyncio.create_task(self._outstay(spec))
        await workflow.wait_condition(lambda: self.inside)
        second = asyncio.create_task(self._hold(spec, first))
        await asyncio.gather(first, second, return_exceptions=True)
        return [first.result() if not first.exception() else 0.0, second.result()]

    async def _outstay(self, spec: Spec) -> float:
        async with block(spec):
            self.inside = True
            overtaken = asyncio.create_task(self._until_overtaken())
            try:
                await asyncio.shield(overtaken)
            except asyncio.CancelledError:
                await overtaken  # a body that takes its time to stop
        return workflow.time()

    async def _until_overtaken(self) -> None:
        """It never is: the workflow's other tasks wait until it has left."""
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self.overtaken, timeout=3.0)

    async def _hold(self, spec: Spec, first: asyncio.Task[float]) -> float:
        """And on, after the first has left."""
        mine = Spec(spec.resource, spec.queue, spec.way, acquire={**spec.acquire, "ttl": 60.0})
        async with block(mine):
            self.overtaken = True
            await workflow.wait([first])
            self.seen.append("the first has left")
            await workflow.wait_condition(lambda: self.gone_on > 0)
        return workflow.time()


@workflow.defn
class Interrupted(Gated):
    """A body that is cancelled in some way; what it saw is in its log."""

    @workflow.init
    def __init__(self, spec: Spec, how: str) -> None:
        super().__init__()

    @workflow.run
    async def run(self, spec: Spec, how: str) -> list[str]:
        await getattr(self, f"_{how}")(spec)
        return self.seen

    async def _hold(self, spec: Spec) -> None:
        async with block(spec):
            self.inside = True
            try:
                await self.work(spec)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise

    async def _twice(self, spec: Spec) -> None:
        """Cancelled in its body, and again while it releases."""
        task = asyncio.create_task(self._hold(spec))
        await workflow.wait_condition(lambda: self.inside)
        task.cancel()
        await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except BaseException as error:
            self.seen.append(type(error).__name__)

    async def _sibling(self, spec: Spec) -> None:
        """Cancelled by a task group, as a sibling fails."""

        async def fail() -> None:
            await workflow.wait_condition(lambda: self.inside)
            raise ApplicationError("sibling")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hold(spec))
                group.create_task(fail())
        except* ApplicationError as errors:
            self.seen += [str(each) for each in errors.exceptions]

    async def _timeout(self, spec: Spec) -> None:
        """A time-out around the whole."""
        try:
            async with asyncio.timeout(1):
                await self._hold(spec)
        except TimeoutError:
            self.seen.append("timed out")

    async def _own(self, spec: Spec) -> None:
        """The body fails by itself just as the permit is lost."""
        try:
            async with semaphore(spec).acquire(**acquire(spec)) as permit:
                self.inside = True
                try:
                    await self.work(spec)
                except asyncio.CancelledError:
                    self.seen.append(f"lost: {permit.reason}")
                    raise ApplicationError("its own") from None
        except ApplicationError as error:
            self.seen += [error.message, *getattr(error, "__notes__", ())]

    async def _silent(self, spec: Spec) -> None:
        """The body swallows the cancellation."""
        try:
            async with semaphore(spec).acquire(**acquire(spec)):
                self.inside = True
                try:
                    await self.work(spec)
                except asyncio.CancelledError:
                    self.seen.append("swallowed")
        except LeaseLost as lost:
            self.seen.append(lost.reason)
            task = asyncio.current_task()
            assert task is not None
            self.seen.append(str(task.cancelling()))
            await workflow.sleep(0.01)  # nothing is left of the cancellation


@workflow.defn
class Relay(Gated):
    """Holds over several runs."""

    @workflow.init
    def __init__(self, spec: Spec) -> None:
        super().__init__()

    @workflow.run
    async def run(self, spec: Spec) -> Held:
        await self.gap(spec)
        sem = semaphore(spec)
        begun = sem.acquire(**acquire(spec)) if spec.handoff is None else sem.reattach(spec.handoff)
        async with begun as permit:
            spec.entered = spec.entered or workflow.time()
            self.inside = True
            await self.work(spec)
            if spec.runs > 1:
                spec.runs -= 1
                handoff = await permit.detach()
                spec.handoff = asdict(handoff)
                workflow.continue_as_new(spec)
            left = workflow.time()
        return _held(permit, spec.entered, left)


@workflow.defn
class Curious(Gated):
    """Small things that need a workflow to be tried in."""

    @workflow.init
    def __init__(self, spec: Spec, what: str) -> None:
        super().__init__()

    @workflow.run
    async def run(self, spec: Spec, what: str) -> list[Any]:
        found: list[Any] = await getattr(self, f"_{what}")(spec)
        return found

    async def _nested(self, spec: Spec) -> list[Any]:
        async with semaphore(spec).acquire(**acquire(spec)):
            try:
                async with semaphore(spec).acquire(**acquire(spec)):
                    return ["entered twice"]
            except Exception as error:
                again = await semaphore(spec).try_acquire()
                return [type(error).__name__, str(error), again]

    async def _lock_block(self, spec: Spec) -> list[Any]:
        lock = Lock(spec.resource, task_queue=spec.queue)
        async with lock as permit:
            permit.ensure(needs="1s")
            first = permit.token
            inside = [str(permit), int(permit), permit.lost, 500 < permit.remaining < 600]
        async with lock as permit:
            pass
        try:
            permit.ensure()
        except Exception as error:
            inside.append(type(error).__name__)
        assert first is not None
        assert permit.token is not None
        return [*inside, first < permit.token, permit.remaining, repr(permit)]

    async def _bare(self, spec: Spec) -> list[Any]:
        permit = await semaphore(spec).acquire(**acquire(spec))
        before = permit.deadline
        await workflow.sleep(0.5)
        await permit.renew("20s")
        short = ""
        try:
            permit.ensure(needs="1h")
        except PermitLost as error:
            short = str(error)
        return [permit.deadline > before, short, await permit.release(), await permit.release()]

    async def _many(self, spec: Spec) -> list[Any]:
        """Tasks of one workflow take turns without asking the server."""
        order: list[int] = []
        inside = 0
        most = 0

        async def one(number: int) -> None:
            nonlocal inside, most
            async with semaphore(spec).acquire(**acquire(spec)):
                inside += 1
                most = max(most, inside)
                order.append(number)
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(one(number) for number in range(4)))
        return [sorted(order), most]

    async def _wrong(self, spec: Spec) -> list[Any]:
        sem = semaphore(spec)
        tries: list[Any] = [
            lambda: Semaphore("x", capacity=0),
            lambda: Semaphore("x" * 300, capacity=1),
            lambda: Semaphore("x", capacity=1, on_holder_close="slow"),  # type: ignore[arg-type]
            lambda: Semaphore("x", capacity=1, on_holder_close="fast", quarantine=3),
            lambda: sem.acquire(ttl="soon"),
            lambda: sem.acquire(ttl=5, lease=5),
            lambda: sem.acquire(wait=5, timeout=5),
            lambda: sem.acquire(backoff=0),
            lambda: sem.acquire(ttl=1, max_hold="1d"),
            lambda: sem.reattach({"what": 1}),
        ]
        said = []
        for each in tries:
            try:
                each()
            except ApplicationError as error:
                said.append(str(error))
        try:
            await sem.acquire(units=2)
        except ApplicationError as error:
            said.append(str(error))
        return said

    async def _from_the_environment(self, spec: Spec) -> list[Any]:
        async with Semaphore(spec.resource, capacity=1).acquire(ttl=10):
            return []

    async def _uncaught(self, spec: Spec) -> list[Any]:
        Semaphore("x", capacity=-1)
        return []
