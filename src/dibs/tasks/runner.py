"""The life of one scheduled task in one process: wait for a tick, try it, wait for the next."""

import asyncio
from random import uniform

from dibs.tasks.attempt import RETRY, Attempt
from dibs.tasks.duty import Duty
from dibs.tasks.moments import SECOND
from dibs.tasks.report import log
from dibs.tasks.schedule import ticks_between

PUNCTUAL = 10 * SECOND
"""A tick isn't missed while it is no older: event loops are always a little late."""

LATEST = 0.9
"""No jitter goes beyond this part of the way to the next tick."""

COUNTED = 3600 * SECOND
"""After a pause ticks are counted as missed as far back as this, or as their grace."""


class Runner:
    """Tries the ticks of one task."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._task, self._campaign = duty.task, duty.campaign
        self._time, self._tally, self._reporter = duty.time, duty.tally, duty.reporter
        self._terms = duty.task.terms
        self._drawn = (0, 0)
        self.attempts: dict[asyncio.Task[None], Attempt] = {}
        """What runs at this moment."""
        self._here_since: int
        self._done_until: int
        """Ticks up to this moment are settled here."""
        self._arrive()

    async def work(self) -> None:
        """Go on until stopped, whatever happens."""
        while not self._time.stopped:
            try:
                await self._become_leader()
                await self._follow()
            except Exception as error:  # noqa: BLE001  # it is reported
                self._reporter.trouble(error)
                log.debug("the scheduler stumbled", exc_info=True)
                await self._time.nap(self._time.now() + RETRY)
        self._tally.next_run = None

    # -- when ---------------------------------------------------------------------------------------

    async def _become_leader(self) -> None:
        """Where only the leader runs it, wait until that is us; the time before is not ours."""
        if self._campaign is not None and not self._campaign.is_leader():
            self._tally.next_run = None
            await self._time.unless_stopped(self._campaign.wait())
            self._arrive()

    def _arrive(self) -> None:
        """Ticks are ours from now on, and those before only as the policy says."""
        self._here_since = self._done_until = self._time.now()
        if not self._from_now_on:
            self._done_until -= self._terms.grace_span

    @property
    def _from_now_on(self) -> bool:
        """Nobody wants to know what was due before we began."""
        return self._terms.missed == "skip" or self._terms.everywhere

    async def _follow(self) -> None:
        """Try one tick after the other while they are ours."""
        while not self._time.stopped and (self._campaign is None or self._campaign.is_leader()):
            now = self._time.now()
            if now < self._done_until - self._terms.grace_span:
                log.warning("task %s goes on, though the clock was set back", self._task.name)
                self._done_until = now
            tick = self._task.schedule.after(self._done_until)
            self._tally.next_run = tick
            due = tick + self._delay(tick)
            if now < due:
                await self._time.nap(due)
            else:
                await self._try(self._ticks_until(now))

    def _delay(self, tick: int) -> int:
        """How much later than it is due it is tried: the same until it has been."""
        if not self._terms.jitter:
            return 0
        if self._drawn[0] != tick:
            gap = self._task.schedule.after(tick) - tick
            most = min(self._terms.jitter * SECOND, gap * LATEST)
            self._drawn = (tick, round(uniform(0, most)))  # noqa: S311
        return self._drawn[1]

    def _ticks_until(self, now: int) -> list[int]:
        """The ticks that are due, oldest first; all are settled with that."""
        counted = now - max(COUNTED, self._terms.grace_span)
        ticks = ticks_between(self._task.schedule, max(self._done_until, counted), now)
        self._done_until = now if not ticks else ticks[-1]
        return ticks

    # -- what ---------------------------------------------------------------------------------------

    async def _try(self, ticks: list[int]) -> None:
        """By its policy: the newest of them, or all, and none that is too old."""
        if self._terms.missed != "all":
            self._tally.missed += sum(tick > self._here_since for tick in ticks[:-1])
            ticks = ticks[-1:]
        for tick in ticks:
            if self._time.stopped:
                return
            if self._is_missed(tick):
                self._tally.missed += 1
            else:
                await self._attempt(tick, wait=tick != ticks[-1])

    def _is_missed(self, tick: int) -> bool:
        patience = self._terms.window
        if self._terms.missed == "skip":
            patience = min(patience, round(self._terms.jitter * SECOND) + PUNCTUAL)
        return self._time.now() - tick > patience

    async def _attempt(self, tick: int, *, wait: bool) -> None:
        """Try a tick, and wait until it is decided who runs it, or until it has been run."""
        until = tick + self._terms.window
        if self._terms.missed != "all":
            until = min(until, self._task.schedule.after(max(tick, self._time.now())))
        attempt = Attempt(self._duty, tick, until)
        run = asyncio.create_task(attempt.run(), name=f"dibs task {self._task.name}")
        self.attempts[run] = attempt
        run.add_done_callback(self.attempts.pop)
        if wait:
            await asyncio.wait({run})
        else:
            await attempt.decided.wait()
