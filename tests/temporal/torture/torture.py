"""The driver: a server, workers, those who contend, faults, then calm, then the verdict."""

import asyncio
import random
import re
import time
import uuid
from collections import Counter
from pathlib import Path

from temporalio.client import Client

from dibs.stores.temporal import ids
from dibs.testing.history import read
from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crews, Queues
from tests.temporal.torture.crowd import Crowd
from tests.temporal.torture.diary import Diary, boot_time
from tests.temporal.torture.faults import Faults
from tests.temporal.torture.judging import judge
from tests.temporal.torture.marks import Watch, befell
from tests.temporal.torture.operators import keep_histories, left_open, told_of
from tests.temporal.torture.pace import Pace, steady
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.verdict import Verdict

GAPS = (0.4, 1.6)
"""Seconds between two faults, at least; they are spread over all cycles."""
TICK = 0.1
DYNAMIC = {"history.defaultWorkflowTaskTimeout": '"3s"'}
"""The tasks of a killed worker pass to others after so long."""
_WRONG = re.compile(
    r"ondeterminis|TMPRL1100|Failed activation|(Task|_GatheringFuture) exception was never|Unhandled"
)


async def torture(plan: Plan, folder: Path) -> Verdict:
    """All of it; what it started has ended when it returns. `folder` keeps the histories."""
    began = time.monotonic()
    verdict = Verdict(plan)
    with TemporalServer(folder / "server", on_file=True, dynamic=DYNAMIC) as server:
        client = await Client.connect(server.address)
        with Diary(folder / "history-driver.jsonl") as diary:
            trial = _Trial(client, server, diary, plan, folder)
            try:
                await trial.run(verdict)
            finally:
                await asyncio.to_thread(trial.crews.end)
    verdict.wrong = _complaints(folder / "workers.log", folder / "plain.log")
    arrivals = {run: boot_time(at) for run, at in verdict.ends.arrivals.items()}
    events = read(*folder.glob("history-*.jsonl"))
    verdict.judgement = judge(events, plan, trial.crowd.orders, arrivals)
    verdict.plain = befell(events)
    verdict.seconds = time.monotonic() - began
    return verdict


class _Trial:
    """One server, one crew, one crowd."""

    def __init__(
        self, client: Client, server: TemporalServer, diary: Diary, plan: Plan, folder: Path
    ) -> None:
        queues = Queues(f"t{uuid.uuid4().hex[:8]}")
        self.crews = Crews.start(plan, server, queues, folder, diary)
        self.crowd = Crowd(client, plan, queues)
        self._client, self._plan, self._folder = client, plan, folder
        self._watch = Watch(folder)
        self.crowd.on_end = self._watch.forget
        self._faults = Faults(client, server, self.crews, self.crowd, self._watch, diary, plan)
        self._pace = Pace(client, queues.permits, diary, plan)
        self._draw = random.Random(plan.seed + 1)

    async def run(self, verdict: Verdict) -> None:
        """The storm, the calm, and the look at what is left."""
        crowd = asyncio.create_task(self.crowd.run())
        pacing = asyncio.create_task(self._pace.run())
        try:
            await self._storm()
            self.crews.wake()
            await self._rest(self._plan.calm)
            self.crowd.coming = False
            # first: slot mode promises nothing to who waits while others keep coming to the broker
            await asyncio.to_thread(self.crews.plain.end, 2 * self._plan.bound)  # threads wait on
            verdict.stuck = await self._see_off(crowd)
        finally:
            crowd.cancel()
            pacing.cancel()
        verdict.slow = self._pace.slow
        verdict.left = [] if verdict.stuck else await left_open(self._client, self._plan)
        if verdict.stuck or verdict.left:
            await keep_histories(self._client, self._folder)
        self._faults.operator.write_down()
        self._watch.look()
        verdict.cycles = self._watch.cycles
        verdict.faults, verdict.ends = self._faults.counts, self.crowd.ends
        verdict.bad_ends = self.crews.workers.bad_ends
        verdict.bad_programs = self.crews.plain.bad_ends
        verdict.handovers = await self._handovers()

    async def _storm(self) -> None:
        """Faults as long as there is work, spread over it; no longer than it gets on."""
        plan, began = self._plan, time.monotonic()
        done, got_on = 0, began
        strike_at = began + self._draw.uniform(*GAPS)
        while time.monotonic() - began < plan.seconds:
            await self._rest(TICK)
            self._watch.look()
            struck = self._faults.counts.total()
            if self._watch.cycles > done:
                done, got_on = self._watch.cycles, time.monotonic()
            if time.monotonic() - got_on > 3 * plan.bound:
                return
            if self._watch.cycles >= plan.cycles and struck >= plan.faults:
                return
            due = struck * plan.cycles <= done * plan.faults and done > 0
            if struck < plan.faults and due and time.monotonic() >= strike_at:
                await self._faults.strike()
                strike_at = time.monotonic() + self._draw.uniform(*GAPS)

    async def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.crews.look_after()
            await asyncio.sleep(min(left, TICK))

    async def _see_off(self, crowd: "asyncio.Task[None]") -> list[str]:
        """Everybody is served in time; tell of who is not."""
        patience = time.monotonic() + 2 * self._plan.bound + self._plan.crowd * self._plan.lease
        while not crowd.done() and time.monotonic() < patience:
            await self._rest(TICK)
        if crowd.done():
            await crowd
            return []
        return [await told_of(self._client, each) for each in self.crowd.open]

    async def _handovers(self) -> Counter[str]:
        query = f"WorkflowType = '{ids.BROKER}' AND ExecutionStatus = 'ContinuedAsNew'"

        async def count() -> Counter[str]:
            return Counter([each.id async for each in self._client.list_workflows(query)])

        return await steady(count)


def _complaints(*logs: Path) -> Counter[str]:
    """Lines that no fault explains, without what differs from time to time."""
    lines = [line for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
    return Counter(line[:300] for line in lines if _WRONG.search(line))
