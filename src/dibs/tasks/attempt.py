"""One tick of one task: claimed, then run while the run lock is held."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from dibs import AcquireTimeout, LeaseLost, NotHeld, TaskLock, as_current
from dibs import sync as blocking
from dibs.tasks.claim import Duty, RunLock
from dibs.tasks.definition import called, is_async, is_cancelled
from dibs.tasks.schedule import SECOND, written
from dibs.tasks.status import Outcome

type Ended = Callable[[Outcome, BaseException | None], None]


async def outcome_of(
    call: Callable[[], Awaitable[object]],
    ended: Ended,
    *,
    is_loss: Callable[[BaseException], bool] = lambda _: False,
) -> tuple[Outcome, BaseException | None]:
    """Call and await it: its outcome, and the error if it failed. `ended` is told both, in any case.

    Raises nothing but a cancellation that somebody asked for. `is_loss`: that error means a lost lease.
    """
    outcome: Outcome = "done"
    failure: BaseException | None = None
    try:
        await call()
    except asyncio.CancelledError as error:
        if is_cancelled():
            outcome = "cancelled"
            raise
        outcome, failure = "failed", error
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is reported
        outcome, failure = ("lost" if is_loss(error) else "failed"), error
    finally:
        ended(outcome, failure)
    return outcome, failure


RETRY = SECOND
"""After an error of the store it is tried again after so long."""


class Attempt:
    """What one process does about one tick, until `until`."""

    def __init__(self, duty: Duty, tick: int, until: int) -> None:
        self._task, self._lock, self._campaign = duty.task, duty.lock, duty.campaign
        self._claimant, self._reporter = duty.claimant, duty.reporter
        self._time, self._tally = duty.time, duty.tally
        self._tick = tick
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._again = False
        """A try has ended in an error, and may have taken effect."""
        self.decided = asyncio.Event()
        """It runs, or it won't."""
        self.given_up = False
        """Nobody waits for its thread any more."""

    async def run(self) -> None:
        """Do all of it; raises nothing but a cancellation."""
        outcome, failure = await outcome_of(self._led, self._ended, is_loss=self._is_loss)
        if failure is not None and (self._begun or outcome == "failed"):
            await self._reporter.ended(outcome, failure, self._tick)

    def _ended(self, outcome: Outcome, failure: BaseException | None) -> None:
        self.decided.set()
        if self._begun:
            self._tally.end(self._time.now(), outcome, failure)

    def _is_loss(self, error: BaseException) -> bool:
        """The task didn't fail: the lease that it ran by was lost, or it doesn't lead."""
        if self._campaign is not None and isinstance(error, NotHeld) and not self._begun:
            return True
        relied_on = [self._lock, None if self._campaign is None else self._campaign.election]
        keys = {it.key for it in relied_on if it is not None}
        return isinstance(error, LeaseLost) and error.key in keys

    async def _led(self) -> None:
        if self._campaign is None:
            await self._decide()
        else:
            async with self._campaign.guard():
                await self._decide()

    async def _decide(self) -> None:
        if self._lock is not None:
            if await self._insist(self._claim):
                await self._insist(partial(self._run_locked, self._lock))
        elif self._tally.running:
            self._tally.skipped += 1
        elif is_async(self._task.function):
            await self._in_loop()
        else:
            await self._threaded(self._in_thread)

    # -- winning it ---------------------------------------------------------------------------------

    async def _insist(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Take a step in spite of errors, until it is too late for that."""
        while True:
            try:
                done = await step()
            except Exception as error:
                if self._begun:
                    raise
                self._reporter.trouble(error)
            else:
                self._reporter.well()
                return done
            self._again = True
            again_at = self._time.now() + RETRY
            if self._time.stopped or again_at >= self._until:
                self._tally.missed += 1
                return False
            await self._time.nap(again_at)

    async def _claim(self) -> bool:
        won = await self._claimant.claim(self._task, self._tick, again=self._again)
        if not won:
            self._tally.elsewhere += 1
        return won and self._is_in_time()

    def _is_in_time(self) -> bool:
        """False if we were paused: others may have run it, and their claim, or ours, be over."""
        in_time = self._time.now() <= self._tick + self._task.terms.window
        if not in_time:
            self._tally.missed += 1
        return in_time

    async def _run_locked(self, lock: RunLock) -> bool:
        if not self._is_in_time():
            return False
        try:
            if isinstance(lock, TaskLock):
                async with lock.acquire(note=self._note) as lease:
                    with as_current(lease):
                        await self._in_loop()
                    lease.ensure()  # a body that took too long may have run beside another
            else:
                await self._threaded(partial(self._in_thread_locked, lock))
        except AcquireTimeout as busy:
            if self._begun:  # the task's own
                raise
            self._claimant.refuse_own(busy, self._again)
            self._tally.skipped += 1
            return False
        return True

    @property
    def _note(self) -> str:
        return f"the tick of {written(self._tick)}"

    # -- running it ---------------------------------------------------------------------------------

    async def _threaded(self, body: Callable[[], Any]) -> None:
        await in_thread(body, f"dibs-{self._task.name}", lambda: self.given_up)

    def _in_thread_locked(self, lock: blocking.TaskLock) -> None:
        with lock.acquire(note=self._note) as lease:
            with as_current(lease):
                self._in_thread()
            lease.ensure()

    async def _in_loop(self) -> None:
        self._begin()
        await self._task.function()

    def _in_thread(self) -> None:
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
        self._tally.begin(self._time.now(), self._tick)
        self.decided.set()


async def in_thread(function: Callable[[], Any], name: str, given_up: Callable[[], bool]) -> Any:
    """Run it, and return what it returned.

    Nothing interrupts a thread: a cancelled caller waits for its end, and is cancelled then, unless it
    is given up. The thread is a daemon, so that one that never ends doesn't keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def run() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (context.run(function), None)
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
            loop.call_soon_threadsafe(_resolve, done, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    cancelled = await _ended(done, given_up)
    result, error = done.result()
    if error is not None:
        raise error
    if cancelled is not None:
        raise cancelled
    return result


async def _ended(
    done: "asyncio.Future[Any]", given_up: Callable[[], bool]
) -> asyncio.CancelledError | None:
    """Wait for the end, and keep back the cancellations that come meanwhile."""
    cancelled = None
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as error:
            if given_up():
                raise
            cancelled = error
    return cancelled


def _resolve(done: "asyncio.Future[Any]", outcome: Any) -> None:
    if not done.done():
        done.set_result(outcome)
