"""A tick of a task: claim it, then run it while the run lock is held."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

from dibs import (
    AcquireTimeout,
    Campaign,
    Client,
    LeaseLost,
    NotHeld,
    TaskLock,
    TaskLockConfig,
    as_current,
)
from dibs import sync as blocking
from dibs.tasks.clock import TickClock
from dibs.tasks.definition import Scheduled, called, is_async
from dibs.tasks.schedule import SECOND, written
from dibs.tasks.status import Outcome, RunStats

RETRY = SECOND
"""Microseconds after which a try is repeated that ended in an error of the store."""

type RunLock = TaskLock | blocking.TaskLock
"""For asyncio or for threads, as the task's function is."""


class Uncertain(Exception):
    """The lease in the way may be our own: the answer to that try was lost, and it is being released."""


class Claimant:
    """Claims ticks in one store, for one scheduler. Raises `MissingCapability` for an unsuitable store."""

    def __init__(self, client: Client, require: frozenset[str]) -> None:
        self._about: dict[str, Any] = {"client": client, "require": require}
        self.label: str = f"tasks-{token_hex(3)}"
        """Part of the owner's name, by which it recognises its own leases."""
        TaskLock("any", 1, 1, **self._about)  # an unsuitable store is refused here, and not later

    def run_lock(self, task: Scheduled) -> RunLock | None:
        """The lock that is held while a tick of the task runs; None if it runs everywhere."""
        terms = task.terms
        if terms.everywhere:
            return None
        hold = TaskLockConfig(
            min_hold=terms.min_hold,
            max_hold=terms.max_hold,
            cancel=terms.cancel,
            label=self.label,
        )
        if is_async(task.function):
            return TaskLock.from_config(task.name, hold, **self._about)
        return blocking.TaskLock.from_config(task.name, hold, **self._about)

    async def claim(self, task: Scheduled, tick: int, *, again: bool) -> bool:
        """Claim a tick; False if another process has. That takes one round trip.

        The lock that is named after the tick stays closed for as long as any process may try it. `again`:
        an earlier try ended in an error, and may have succeeded.
        """
        keep = task.terms.keep
        hold = TaskLockConfig(min_hold=keep, max_hold=keep, label=self.label)
        lock = TaskLock.from_config(task.tick_name(tick), hold, **self._about)
        try:
            async with lock.acquire(note="a tick that was claimed"):
                pass  # the release keeps it closed
        except AcquireTimeout as busy:
            self.refuse_own(busy, again)
            return False
        return True

    def refuse_own(self, busy: AcquireTimeout, again: bool) -> None:
        """Raises `Uncertain` if an earlier try of our own is in the way."""
        if again and any(
            holder.state != "retained" and holder.owner.endswith(f"/{self.label}")
            for holder in busy.holders
        ):
            raise Uncertain("a try whose answer was lost is being given up") from busy


@dataclass(frozen=True, slots=True)
class TaskContext:
    """A scheduled task, and what its attempts use."""

    task: Scheduled
    claimant: Claimant
    lock: RunLock | None
    """Lock that is held while it runs; None if it runs everywhere."""
    campaign: Campaign | None
    """The campaign by which it leads, if only a leader runs it."""
    clock: TickClock
    stats: RunStats


type Ended = Callable[[Outcome, BaseException | None], None]


async def outcome_of(
    call: Callable[[], Awaitable[object]],
    ended: Ended,
    *,
    is_loss: Callable[[BaseException], bool] = lambda _: False,
) -> tuple[Outcome, BaseException | None]:
    """Call and await it. Returns its outcome, and the error if it failed; `ended` gets both in any case.

    Raises only a cancellation of the running task. `is_loss`: that error means a lost lease.
    """
    outcome: Outcome = "done"
    failure: BaseException | None = None
    try:
        await call()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # else the function has raised it by itself
            outcome = "cancelled"
            raise
        outcome, failure = "failed", error
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is reported
        outcome, failure = ("lost" if is_loss(error) else "failed"), error
    finally:
        ended(outcome, failure)
    return outcome, failure


class TaskAttempt:
    """Work of one process on one tick, until `until`."""

    def __init__(self, context: TaskContext, tick: int, until: int) -> None:
        self._task, self._lock, self._campaign = context.task, context.lock, context.campaign
        self._claimant, self._clock, self._stats = context.claimant, context.clock, context.stats
        self._tick = tick
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._again = False
        """An earlier try ended in an error, and may have taken effect."""
        self.decided: asyncio.Event = asyncio.Event()
        """It runs, or it will not."""
        self.given_up: bool = False
        """The stop waits for its thread no longer."""

    async def run(self) -> None:
        """Do all of it. Raises only a cancellation."""
        outcome, failure = await outcome_of(self._as_leader, self._ended, is_loss=self._is_loss)
        if failure is not None and (self._begun or outcome == "failed"):
            await self._stats.report(outcome, failure, self._tick)

    def _ended(self, outcome: Outcome, failure: BaseException | None) -> None:
        self.decided.set()
        if self._begun:
            self._stats.end(self._clock.now(), outcome, failure)

    def _is_loss(self, error: BaseException) -> bool:
        """Whether the lease that it ran by was lost, or it does not lead: the task itself did not fail."""
        if self._campaign is not None and isinstance(error, NotHeld) and not self._begun:
            return True
        relied_on = [self._lock, None if self._campaign is None else self._campaign.election]
        keys = {it.key for it in relied_on if it is not None}
        return isinstance(error, LeaseLost) and error.key in keys

    async def _as_leader(self) -> None:
        if self._campaign is None:
            await self._decide()
        else:
            async with self._campaign.guard():
                await self._decide()

    async def _decide(self) -> None:
        if self._lock is not None:
            if await self._retry_until_late(self._claim):
                await self._retry_until_late(partial(self._run_locked, self._lock))
        elif self._stats.running:
            self._stats.skipped += 1
        elif is_async(self._task.function):
            await self._in_loop()
        else:
            await self._in_thread(self._call)

    # -- claiming it --------------------------------------------------------------------------------

    async def _retry_until_late(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Repeat a step after errors, until it is too late to try again."""
        while True:
            try:
                done = await step()
            except Exception as error:
                if self._begun:
                    raise
                self._stats.cannot_try(error, self._clock.now())
            else:
                self._stats.can_try()
                return done
            self._again = True
            again_at = self._clock.now() + RETRY
            if self._clock.stopped or again_at >= self._until:
                self._stats.missed += 1
                return False
            await self._clock.nap(again_at)

    async def _claim(self) -> bool:
        won = await self._claimant.claim(self._task, self._tick, again=self._again)
        if not won:
            self._stats.elsewhere += 1
        return won and self._is_in_time()

    def _is_in_time(self) -> bool:
        """False after a pause in which others may have run it, and their claim, or ours, ended."""
        in_time = self._clock.now() <= self._tick + self._task.terms.window
        if not in_time:
            self._stats.missed += 1
        return in_time

    async def _run_locked(self, lock: RunLock) -> bool:
        if not self._is_in_time():
            return False
        note = f"the tick of {written(self._tick)}"
        try:
            if isinstance(lock, TaskLock):
                async with lock.acquire(note=note) as lease:
                    with as_current(lease):
                        await self._in_loop()
                    lease.ensure()  # a body that took too long may have run beside another
            else:
                await self._in_thread(partial(self._call_locked, lock, note))
        except AcquireTimeout as busy:
            if self._begun:  # the task's own
                raise
            self._claimant.refuse_own(busy, self._again)
            self._stats.skipped += 1
            return False
        return True

    # -- running it ---------------------------------------------------------------------------------

    async def _in_thread(self, body: Callable[[], Any]) -> None:
        await in_thread(body, f"dibs-{self._task.name}", lambda: self.given_up)

    def _call_locked(self, lock: blocking.TaskLock, note: str) -> None:
        with lock.acquire(note=note) as lease:
            with as_current(lease):
                self._call()
            lease.ensure()

    async def _in_loop(self) -> None:
        self._begin()
        await self._task.function()

    def _call(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)
        result = self._task.function()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{called(self._task.function)} returned something to await, and was called in a "
                "thread: make it an `async def`"
            )

    def _begin(self) -> None:
        self._begun = True
        self._stats.begin(self._clock.now(), self._tick)
        self.decided.set()


async def in_thread(function: Callable[[], Any], name: str, given_up: Callable[[], bool]) -> None:
    """Run the function in a thread, and raise what it raises.

    Nothing interrupts a thread: a cancelled caller waits for its end, and is cancelled then, unless
    `given_up`. The thread is a daemon, so that one that never ends does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()
    variables = copy_context()

    def run() -> None:
        failure: BaseException | None = None
        try:
            variables.run(function)
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            failure = error
        with suppress(RuntimeError):  # the loop is closed, so nothing in it waits
            loop.call_soon_threadsafe(done.set_result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    cancelled = None
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as error:
            if given_up():
                raise
            cancelled = error
    failed = done.result() or cancelled
    if failed is not None:
        raise failed
