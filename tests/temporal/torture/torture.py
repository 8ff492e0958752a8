"""The driver: a server, workers, those who contend, faults, then calm, then the verdict."""

import asyncio
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from dibs.core.codec import decode_reply
from dibs.model import Status
from dibs.stores.temporal import ids
from dibs.temporal.slots.workflow import PermitSlotInput
from dibs.testing.history import read
from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import PLAIN, WORKER, ModuleCrew
from tests.temporal.torture.crowd import Crowd, found, steady
from tests.temporal.torture.faults import Faults
from tests.temporal.torture.plan import QUEUE, Plan
from tests.temporal.torture.records import LOST, Watch, boot_time
from tests.temporal.torture.verdict import Judge, Verdict

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
        trial = _Trial(client, server, plan, folder)
        try:
            await trial.run(verdict)
        finally:
            for crew in trial.crews:
                await asyncio.to_thread(crew.end, at_once=False)
                crew.close()
    log = (folder / "stderr").read_text("utf-8", "replace")
    verdict.wrong = Counter(line[:300] for line in log.splitlines() if _WRONG.search(line))
    arrivals = {run: boot_time(at) for run, at in verdict.ends.arrivals.items()}
    events = read(*folder.glob("history-*.jsonl"))
    verdict.judgement = Judge(plan, trial.crowd.orders, arrivals).judge(events)
    verdict.plain_lost = Counter(event.lease for event in events if event.resource == LOST)
    verdict.seconds = time.monotonic() - began
    return verdict


class _Trial:
    """One server, its workers, and those who contend."""

    def __init__(self, client: Client, server: TemporalServer, plan: Plan, folder: Path) -> None:
        self._prefix = prefix = f"t{uuid.uuid4().hex[:8]}-"
        self._client, self._plan = client, plan
        url = f"{server.url}?task_queue={prefix}{QUEUE}"
        self._workers = ModuleCrew(
            plan.workers, [WORKER, plan.bug], server.address, prefix, plan, folder
        )
        self._programs = ModuleCrew(plan.programs, [PLAIN], url, prefix, plan, folder)
        self.crews = (self._programs, self._workers)
        """Plain programs first, which need the workers."""
        self.crowd = Crowd(client, plan, prefix)
        self._watch = Watch(folder)
        self.crowd.on_end = self._watch.forget
        self._faults = Faults(
            client, server, self._workers, self._programs, self.crowd, self._watch, plan
        )
        self._draw = random.Random(plan.seed + 1)

    async def run(self, verdict: Verdict) -> None:
        """The storm, the calm, and the look at what is left."""
        for crew in self.crews:
            crew.start()
        crowd = asyncio.create_task(self.crowd.run())
        pacing = asyncio.create_task(self._pace())
        try:
            await self._storm()
            for crew in self.crews:
                crew.resume(everybody=True)
            await self._rest(self._plan.calm)
            self.crowd.coming = False
            verdict.stuck = await self._see_off(crowd)
            await asyncio.to_thread(self._programs.end, at_once=False)
        finally:
            crowd.cancel()
            pacing.cancel()
        verdict.left = [] if verdict.stuck else await self._left_open()
        self._watch.look()
        verdict.cycles = self._watch.cycles
        verdict.faults, verdict.ends = self._faults.counts, self.crowd.ends
        verdict.bad_programs = self._programs.bad_ends

    async def _pace(self) -> None:
        """Start and end a permit that nobody wants, over and over. One that takes long is a disturbance.

        On a machine that takes seconds for a step nobody is served in time.
        """
        half = self._plan.lease / 2
        while True:
            walking = asyncio.create_task(self._walk())
            try:
                while not (await asyncio.wait((walking,), timeout=half))[0]:
                    self._workers.recorder.disturbed(0)
                await walking
            finally:
                walking.cancel()
            await asyncio.sleep(self._plan.lease)

    async def _walk(self) -> None:
        name = f"pace-{uuid.uuid4().hex[:8]}"
        given = PermitSlotInput(name, "0", lease_seconds=0.0)
        with suppress(RPCError, WorkflowFailureError):  # a server that is struck may say anything
            walking = await steady(
                lambda: self._client.start_workflow(
                    ids.PERMIT, given, id=name, task_queue=f"{self._prefix}{QUEUE}"
                )
            )
            await steady(walking.result)

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
            for crew in self.crews:
                crew.look_after()
            await asyncio.sleep(min(left, TICK))

    async def _see_off(self, crowd: "asyncio.Task[None]") -> list[str]:
        """Everybody is served in time; returns who is not."""
        patience = time.monotonic() + 2 * self._plan.bound + self._plan.crowd * self._plan.lease
        while not crowd.done() and time.monotonic() < patience:
            await self._rest(TICK)
        if crowd.done():
            await crowd
            return []
        return list(self.crowd.open)

    async def _left_open(self) -> list[str]:
        """What still runs once everything should be over."""
        until = time.monotonic() + self._plan.patience
        while (left := [each async for each in self._open()]) and time.monotonic() < until:
            await asyncio.sleep(0.3)
        return left

    async def _open(self) -> AsyncIterator[str]:
        listed = self._client.list_workflows("ExecutionStatus = 'Running'")
        for each in [each async for each in listed]:
            handle = self._client.get_workflow_handle(each.id, run_id=each.run_id)
            described = await found(handle.describe)  # the list may be a little behind
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                continue
            book = await self._book(each.id) if described.workflow_type == ids.BROKER else ""
            # a broker takes a minute to end after those who were killed
            if book or self._plan.to_the_end or described.workflow_type != ids.BROKER:
                yield f"{described.workflow_type} {each.id} is open{book}"

    async def _book(self, broker: str) -> str:
        """What a broker keeps."""
        handle = self._client.get_workflow_handle(broker)
        packed = await steady(lambda: handle.query(ids.STATUS, result_type=list[Any]))
        status = decode_reply(packed, b"")
        assert isinstance(status, Status)
        kept = [each.owner for each in status.holders]
        return f"; {kept} hold and {status.waiting} wait" if kept or status.waiting else ""
