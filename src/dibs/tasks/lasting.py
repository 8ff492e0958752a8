"""Tasks that go on from the start to the stop: coroutine functions, and candidates."""

import asyncio

from dibs import Campaign, LeaderElection
from dibs.tasks.clock import Timekeeper
from dibs.tasks.definition import Lasting
from dibs.tasks.outcome import outcome_of
from dibs.tasks.report import Reporter
from dibs.tasks.status import Tally


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
