"""The scheduler from one start to its stop: which ticks are tried when, and how it ends."""

import asyncio
from collections.abc import Coroutine
from random import uniform
from typing import Any

from dibs import Campaign, LeaderElection
from dibs.tasks.attempt import RETRY, Claimant, TaskAttempt, TaskContext, outcome_of
from dibs.tasks.clock import TickClock
from dibs.tasks.definition import Definition, Lasting, Led
from dibs.tasks.schedule import SECOND, ticks_between
from dibs.tasks.status import RunStats, log

PUNCTUAL = 10 * SECOND
"""Microseconds for which a tick counts as punctual: event loops are always a little late."""

LATEST = 0.9
"""The longest jitter, as a part of the time to the next tick."""

COUNTED = 3600 * SECOND
"""Microseconds before now in which ticks are counted as missed after a pause, or their grace if longer."""


class Runner:
    """Tries the ticks of one task."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._task, self._campaign = context.task, context.campaign
        self._clock, self._stats = context.clock, context.stats
        self._terms = context.task.terms
        self._drawn = (0, 0)
        self.attempts: dict[asyncio.Task[None], TaskAttempt] = {}
        """What runs at this moment."""
        self._here_since: int
        self._done_until: int
        """Ticks up to this moment were tried or dropped here."""
        self._arrive()

    async def work(self) -> None:
        """Go on until stopped. Errors are reported."""
        while not self._clock.stopped:
            try:
                await self._become_leader()
                await self._follow()
            except Exception as error:  # noqa: BLE001  # it is reported
                self._stats.cannot_try(error, self._clock.now())
                log.debug("the scheduler stumbled", exc_info=True)
                await self._clock.nap(self._clock.now() + RETRY)
        self._stats.next_run = None

    # -- when ---------------------------------------------------------------------------------------

    async def _become_leader(self) -> None:
        """If only the leader runs the task, wait until this process leads."""
        if self._campaign is not None and not self._campaign.is_leader():
            self._stats.next_run = None
            await self._clock.unless_stopped(self._campaign.wait())
            self._arrive()

    def _arrive(self) -> None:
        """Take over ticks from now on, and earlier ones as the policy says."""
        self._here_since = self._done_until = self._clock.now()
        if not self._from_now_on:
            self._done_until -= self._terms.grace_span

    @property
    def _from_now_on(self) -> bool:
        """Whether ticks before the start do not matter."""
        return self._terms.missed == "skip" or self._terms.everywhere

    async def _follow(self) -> None:
        """Try one tick after the other, while this process may."""
        while not self._clock.stopped and (self._campaign is None or self._campaign.is_leader()):
            now = self._clock.now()
            if now < self._done_until - self._terms.grace_span:
                log.warning("task %s goes on, though the clock was set back", self._task.name)
                self._done_until = now
            tick = self._task.schedule.after(self._done_until)
            self._stats.next_run = tick
            due = tick + self._delay(tick)
            if now < due:
                await self._clock.nap(due)
            else:
                await self._try(self._ticks_until(now))

    def _delay(self, tick: int) -> int:
        """Microseconds of jitter, drawn once for each tick."""
        if not self._terms.jitter:
            return 0
        if self._drawn[0] != tick:
            gap = self._task.schedule.after(tick) - tick
            most = min(self._terms.jitter * SECOND, gap * LATEST)
            self._drawn = (tick, round(uniform(0, most)))  # noqa: S311
        return self._drawn[1]

    def _ticks_until(self, now: int) -> list[int]:
        """The ticks that are due, oldest first. They are not returned again."""
        counted = now - max(COUNTED, self._terms.grace_span)
        ticks = ticks_between(self._task.schedule, max(self._done_until, counted), now)
        self._done_until = now if not ticks else ticks[-1]
        return ticks

    # -- what ---------------------------------------------------------------------------------------

    async def _try(self, ticks: list[int]) -> None:
        """Try the newest of the ticks, or all, by the policy; never one that is too old."""
        if self._terms.missed != "all":
            self._stats.missed += sum(tick > self._here_since for tick in ticks[:-1])
            ticks = ticks[-1:]
        for tick in ticks:
            if self._clock.stopped:
                return
            if self._is_missed(tick):
                self._stats.missed += 1
            else:
                await self._attempt(tick, wait=tick != ticks[-1])

    def _is_missed(self, tick: int) -> bool:
        patience = self._terms.window
        if self._terms.missed == "skip":
            patience = min(patience, round(self._terms.jitter * SECOND) + PUNCTUAL)
        return self._clock.now() - tick > patience

    async def _attempt(self, tick: int, *, wait: bool) -> None:
        """Try a tick. With `wait`, wait until it has been run, else until it is decided who runs it."""
        until = tick + self._terms.window
        if self._terms.missed != "all":
            until = min(until, self._task.schedule.after(max(tick, self._clock.now())))
        attempt = TaskAttempt(self._context, tick, until)
        run = asyncio.create_task(attempt.run(), name=f"dibs task {self._task.name}")
        self.attempts[run] = attempt
        run.add_done_callback(self.attempts.pop)
        if wait:
            await asyncio.wait({run})
        else:
            await attempt.decided.wait()


LAST_MOMENTS = 5.0
"""Seconds that a cancelled task can take to end."""


class TaskSession:
    """The scheduler from one start to its stop: a loop for each scheduled task, and what those run."""

    def __init__(self, claimant: Claimant, clock: TickClock, shutdown_timeout: float) -> None:
        self._claimant = claimant
        self._clock = clock
        self._shutdown_timeout = shutdown_timeout
        self._campaigns: dict[int, Campaign] = {}
        """Our candidates, by the id of their election."""
        self._runners: list[Runner] = []
        self._loops: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.asked: asyncio.Event = asyncio.Event()
        """Set when it is to stop."""

    async def begin(self, definition: Definition, stats: RunStats) -> None:
        """Start a task."""
        if isinstance(definition, Led):
            await self._campaign(definition.election)
        elif isinstance(definition, Lasting):
            self._spawn(self._last(definition, stats), definition, self._lasting)
        else:
            leader = definition.terms.leader
            context = TaskContext(
                task=definition,
                claimant=self._claimant,
                lock=self._claimant.run_lock(definition),
                campaign=None if leader is None else await self._campaign(leader),
                clock=self._clock,
                stats=stats,
            )
            runner = Runner(context)
            self._runners.append(runner)
            self._spawn(runner.work(), definition, self._loops)

    async def _last(self, task: Lasting, stats: RunStats) -> None:
        """Call the function once. Raises only a cancellation."""
        stats.begin(self._clock.now())
        outcome, failure = await outcome_of(
            task.function, lambda *how: stats.end(self._clock.now(), *how)
        )
        if failure is not None:
            await stats.report(outcome, failure)

    async def _campaign(self, leader: LeaderElection | Campaign) -> Campaign:
        """The campaign of an election, begun if necessary. A campaign that was given is left alone."""
        if isinstance(leader, Campaign):
            return leader
        campaign = self._campaigns.get(id(leader))
        if campaign is None:
            campaign = leader.campaign()
            await campaign.__aenter__()
            self._campaigns[id(leader)] = campaign
        return campaign

    def trouble(self, election: LeaderElection) -> str | None:
        """Why our candidate cannot stand at this moment."""
        campaign = self._campaigns.get(id(election))
        error = None if campaign is None else campaign.error
        return None if error is None else f"{type(error).__name__}: {error}"

    def _spawn(
        self, body: Coroutine[Any, Any, None], about: Definition, among: set[asyncio.Task[None]]
    ) -> None:
        task = asyncio.create_task(body, name=f"dibs task {about.name}")
        among.add(task)
        task.add_done_callback(among.discard)

    @property
    def well(self) -> bool:
        """Whether it goes on and every loop lives."""
        return not self.asked.is_set() and len(self._loops) == len(self._runners)

    # -- the end ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Start nothing more, wait for what runs, and cancel what takes too long."""
        self.asked.set()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:  # the caller waits no longer
            self._cancel()
            raise

    async def _close(self) -> None:
        self._clock.stop()
        for task in self._lasting:
            task.cancel()
        await self._all_ended(self._shutdown_timeout)
        if self._busy:
            log.warning(
                "%s did not end within %g s, and is cancelled: give a longer shutdown_timeout, or "
                "let it end sooner",
                self._names(),
                self._shutdown_timeout,
            )
            self._cancel()
            await self._all_ended(LAST_MOMENTS)
        if self._busy:
            log.error("%s goes on, though it was cancelled", self._names())
        campaigns = list(self._campaigns.values())
        self._campaigns.clear()
        await asyncio.gather(*(campaign.__aexit__(None, None, None) for campaign in campaigns))

    @property
    def _runs(self) -> set[asyncio.Task[None]]:
        return {task for runner in self._runners for task in runner.attempts}

    @property
    def _busy(self) -> set[asyncio.Task[None]]:
        return {*self._loops, *self._lasting, *self._runs}

    async def _all_ended(self, timeout: float) -> None:
        """Wait for all, also for what those start meanwhile."""
        end = self.loop.time() + timeout
        while (busy := self._busy) and (left := end - self.loop.time()) > 0:
            await asyncio.wait(busy, timeout=left)

    def _cancel(self) -> None:
        for runner in self._runners:
            for attempt in runner.attempts.values():
                attempt.given_up = True
        for task in self._busy:
            task.cancel()

    def _names(self) -> str:
        return ", ".join(sorted({task.get_name().removeprefix("dibs ") for task in self._busy}))
