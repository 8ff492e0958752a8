"""The scheduler from one start to its stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from dibs import Campaign, LeaderElection
from dibs.tasks.claim import Claimant
from dibs.tasks.clock import Timekeeper
from dibs.tasks.definition import Definition, Lasting, Led
from dibs.tasks.duty import Duty
from dibs.tasks.outcome import outcome_of
from dibs.tasks.report import OnError, Reporter, log
from dibs.tasks.runner import Runner
from dibs.tasks.status import Tally

LAST_MOMENTS = 5.0
"""So long may a cancelled task take to end, in seconds."""


class Session:
    """What runs: a loop for each scheduled task, and whatever those have begun."""

    def __init__(
        self,
        claimant: Claimant,
        time: Timekeeper,
        shutdown_timeout: float,
        on_error: OnError | None,
    ) -> None:
        self._claimant = claimant
        self._time = time
        self._patience = shutdown_timeout
        self._on_error = on_error
        self._candidates = Candidates()
        self._runners: list[Runner] = []
        self._loops: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()
        self.asked = asyncio.Event()
        """It is to stop."""

    async def begin(self, definition: Definition, tally: Tally) -> None:
        """Let a task begin."""
        reporter = Reporter(definition.name, tally, self._time, self._on_error)
        if isinstance(definition, Led):
            await self._candidates.campaign(definition.election)
        elif isinstance(definition, Lasting):
            self._spawn(last(definition, self._time, tally, reporter), definition, self._lasting)
        else:
            leader = definition.terms.leader
            campaign = None if leader is None else await self._candidates.campaign(leader)
            duty = Duty(
                task=definition,
                claimant=self._claimant,
                lock=self._claimant.run_lock(definition),
                campaign=campaign,
                time=self._time,
                tally=tally,
                reporter=reporter,
            )
            runner = Runner(duty)
            self._runners.append(runner)
            self._spawn(runner.work(), definition, self._loops)

    def _spawn(
        self, body: Coroutine[Any, Any, None], about: Definition, among: set[asyncio.Task[None]]
    ) -> None:
        task = asyncio.create_task(body, name=f"dibs task {about.name}")
        among.add(task)
        task.add_done_callback(among.discard)

    def trouble(self, election: LeaderElection) -> str | None:
        """Why our candidate can't stand at this moment."""
        return self._candidates.trouble(election)

    @property
    def well(self) -> bool:
        """It goes on, and every loop lives."""
        return not self.asked.is_set() and len(self._loops) == len(self._runners)

    # -- the end ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Begin nothing more, wait for what runs, cancel what takes too long."""
        self.asked.set()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:  # whoever stops us can't wait any longer
            self._cancel()
            raise

    async def _close(self) -> None:
        self._time.stop()
        for task in self._lasting:
            task.cancel()
        await self._all_ended(self._patience)
        if self._busy:
            log.warning(
                "%s did not end within %g s, and is cancelled: give a longer shutdown_timeout, or "
                "let it end sooner",
                self._names(),
                self._patience,
            )
            self._cancel()
            await self._all_ended(LAST_MOMENTS)
        if self._busy:
            log.error("%s goes on, though it was cancelled", self._names())
        await self._candidates.stop()

    @property
    def _runs(self) -> set[asyncio.Task[None]]:
        return {task for runner in self._runners for task in runner.attempts}

    @property
    def _busy(self) -> set[asyncio.Task[None]]:
        return {*self._loops, *self._lasting, *self._runs}

    async def _all_ended(self, timeout: float) -> None:
        """Wait for all, also for what those begin meanwhile."""
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


async def last(task: Lasting, time: Timekeeper, tally: Tally, reporter: Reporter) -> None:
    """Call it once; raises nothing but a cancellation."""
    tally.begin(time.now())
    outcome, failure = await outcome_of(task.function, lambda *how: tally.end(time.now(), *how))
    if failure is not None:
        await reporter.ended(outcome, failure)


class Candidates:
    """The campaigns that tasks rely on, one for each election, in the background."""

    def __init__(self) -> None:
        self._campaigns: dict[int, Campaign] = {}

    async def campaign(self, leader: LeaderElection | Campaign) -> Campaign:
        """The campaign of an election, begun if need be; somebody else's is left alone."""
        if isinstance(leader, Campaign):
            return leader
        campaign = self._campaigns.get(id(leader))
        if campaign is None:
            campaign = leader.campaign()
            await campaign.__aenter__()
            self._campaigns[id(leader)] = campaign
        return campaign

    def trouble(self, leader: LeaderElection) -> str | None:
        """Why a candidate can't stand at this moment."""
        campaign = self._campaigns.get(id(leader))
        error = None if campaign is None else campaign.error
        return None if error is None else f"{type(error).__name__}: {error}"

    async def stop(self) -> None:
        """Hand over what they lead."""
        campaigns = list(self._campaigns.values())
        self._campaigns.clear()
        await asyncio.gather(*(campaign.__aexit__(None, None, None) for campaign in campaigns))
