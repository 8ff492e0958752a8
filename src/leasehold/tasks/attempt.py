"""One tick of one task: claimed, then run while the run lock is held."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from leasehold import AcquireTimeout, LeaseLost, NotHeld, TaskLock
from leasehold import sync as blocking
from leasehold.tasks.duty import Duty
from leasehold.tasks.functions import called, is_async, is_cancelled
from leasehold.tasks.moments import SECOND, written
from leasehold.tasks.status import Outcome
from leasehold.tasks.thread import in_thread

RETRY = SECOND
"""After an error of the store it is tried again after so long."""


class Attempt:
    """What one process does about one tick, until `until`."""

    def __init__(self, duty: Duty, tick: int, until: int) -> None:
        self._task, self._claimant, self._campaign, self._time, self._tally, self._reporter = duty
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
        outcome: Outcome = "done"
        failure: BaseException | None = None
        try:
            await self._led()
        except asyncio.CancelledError as error:
            if is_cancelled():
                outcome = "cancelled"
                raise
            outcome, failure = "failed", error
        except (Exception, SystemExit) as error:  # noqa: BLE001  # it is reported
            outcome, failure = ("lost" if self._is_ours(error) else "failed"), error
        finally:
            self.decided.set()
            if self._begun:
                self._tally.end(self._time.now(), outcome, failure)
        if failure is not None and (self._begun or outcome == "failed"):
            await self._reporter.ended(outcome, failure)

    def _is_ours(self, error: BaseException) -> bool:
        """The task didn't fail: the lease that it ran by was lost, or it doesn't lead."""
        if self._campaign is not None and isinstance(error, NotHeld) and not self._begun:
            return True
        keys = {TaskLock(self._task.name, 0, 1).key}
        if self._campaign is not None:
            keys.add(self._campaign.election.key)
        return isinstance(error, LeaseLost) and error.key in keys

    async def _led(self) -> None:
        if self._campaign is None:
            await self._decide()
        else:
            async with self._campaign.guard():
                await self._decide()

    async def _decide(self) -> None:
        if not self._task.terms.everywhere:
            if await self._insist(self._claim):
                await self._insist(self._run_locked)
        elif self._tally.running:
            self._tally.skipped += 1
        else:
            await self._call(self._body)

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
            self._tally.lost += 1
        elif self._time.now() > self._tick + self._task.terms.window:
            self._tally.missed += (
                1  # we were paused: others may have run it, and their claim be over
            )
            return False
        return won

    async def _run_locked(self) -> bool:
        try:
            await self._call(self._locked())
        except AcquireTimeout as busy:
            if self._begun:  # the task's own
                raise
            self._claimant.refuse_own(busy, self._again)
            self._tally.skipped += 1
            return False
        return True

    def _locked(self) -> Callable[[], Any]:
        """The body, holding the run lock; it does what `current_lease()` needs."""
        terms = self._task.terms
        lock: Any = TaskLock if is_async(self._task.function) else blocking.TaskLock
        decorate = lock.wraps(
            self._task.name.replace("{", "{{").replace("}", "}}"),
            min_hold=terms.min_hold,
            max_hold=terms.max_hold,
            cancel=terms.cancel,
            note=f"the tick of {written(self._tick)}",
            label=self._claimant.label,
            **self._claimant.about,
        )
        wrapped: Callable[[], Any] = decorate(self._body)
        return wrapped

    # -- running it ---------------------------------------------------------------------------------

    @property
    def _body(self) -> Callable[[], Any]:
        return self._in_loop if is_async(self._task.function) else self._in_thread

    async def _call(self, body: Callable[[], Any]) -> None:
        if is_async(body):
            await body()
        else:
            await in_thread(body, f"leasehold-{self._task.name}", lambda: self.given_up)

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
