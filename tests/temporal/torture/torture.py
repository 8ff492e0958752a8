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

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.service import RPCError

from dibs.core.codec import decode_reply
from dibs.model import Status
from dibs.stores.temporal import ids
from dibs.temporal.slots.workflow import PermitSlotInput
from dibs.testing.history import read
from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crews, Queues
from tests.temporal.torture.crowd import Crowd, found, steady
from tests.temporal.torture.faults import Faults
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import Diary, Watch, boot_time, turns_of_programs
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
        with Diary(folder / "history-driver.jsonl") as diary:
            trial = _Trial(client, server, diary, plan, folder)
            try:
                await trial.run(verdict)
            finally:
                for crew in trial.crews.all:
                    await asyncio.to_thread(crew.end)
    verdict.wrong = _complaints(folder / "workers.log", folder / "plain.log")
    arrivals = {run: boot_time(at) for run, at in verdict.ends.arrivals.items()}
    events = read(*folder.glob("history-*.jsonl"))
    verdict.judgement = Judge(plan, trial.crowd.orders, arrivals).judge(events)
    verdict.plain = turns_of_programs(events)
    verdict.seconds = time.monotonic() - began
    return verdict


class _Trial:
    """One server, its workers, and those who contend."""

    def __init__(
        self, client: Client, server: TemporalServer, diary: Diary, plan: Plan, folder: Path
    ) -> None:
        self._queues = Queues(f"t{uuid.uuid4().hex[:8]}")
        self.crews = Crews.start(plan, server, self._queues, folder, diary)
        self.crowd = Crowd(client, plan, self._queues)
        self._client, self._plan, self._diary = client, plan, diary
        self._watch = Watch(folder)
        self.crowd.on_end = self._watch.forget
        self._faults = Faults(client, server, self.crews, self.crowd, self._watch, diary, plan)
        self._draw = random.Random(plan.seed + 1)
        self._slow = 0

    async def run(self, verdict: Verdict) -> None:
        """The storm, the calm, and the look at what is left."""
        crowd = asyncio.create_task(self.crowd.run())
        pacing = asyncio.create_task(self._pace())
        try:
            await self._storm()
            for crew in self.crews.all:
                crew.resume(everybody=True)
            await self._rest(self._plan.calm)
            self.crowd.coming = False
            # first: slot mode promises nothing to who waits while others keep coming to the broker
            await asyncio.to_thread(self.crews.plain.end, 2 * self._plan.bound)  # threads wait on
            verdict.stuck = await self._see_off(crowd)
        finally:
            crowd.cancel()
            pacing.cancel()
        verdict.slow = self._slow
        verdict.left = [] if verdict.stuck else await self._left_open()
        self._faults.record_freed()
        self._watch.look()
        verdict.cycles = self._watch.cycles
        verdict.faults, verdict.ends = self._faults.counts, self.crowd.ends
        verdict.bad_ends = self.crews.workers.bad_ends
        verdict.bad_programs = self.crews.plain.bad_ends
        verdict.handovers = await self._handovers()

    async def _pace(self) -> None:
        """Start and end a permit that nobody wants, over and over. One that takes long is a disturbance.

        On a machine that takes seconds for a step nobody is served in time.
        """
        half = self._plan.lease / 2
        while True:
            walking = asyncio.create_task(self._walk())
            try:
                while not (await asyncio.wait((walking,), timeout=half))[0]:
                    self._slow += 1
                    self._diary.disturbed(0)
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
                    ids.PERMIT, given, id=name, task_queue=self._queues.permits
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
            for crew in self.crews.all:
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
        return [await self._described(each) for each in self.crowd.open]

    async def _described(self, workflow: str) -> str:
        """A holder that does not end: what it waits for."""
        handle = self._client.get_workflow_handle(workflow)
        raw = (await steady(handle.describe)).raw_description
        history = await steady(handle.fetch_history)
        last = [EventType.Name(event.event_type)[11:].lower() for event in history.events[-6:]]
        return (
            f"{workflow}, {len(raw.pending_activities)} activities and {len(raw.pending_children)} "
            f"children under way, {len(history.events)} events, the last: {', '.join(last)}"
        )

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
            book = await self._book(described)
            # a broker takes a minute to end after those who were killed
            if book or self._plan.to_the_end or described.workflow_type != ids.BROKER:
                yield f"{described.workflow_type} {each.id} is open{book}"

    async def _book(self, described: WorkflowExecutionDescription) -> str:
        """What a broker keeps."""
        if described.workflow_type != ids.BROKER:
            return ""
        handle = self._client.get_workflow_handle(described.id)
        packed = await steady(lambda: handle.query(ids.STATUS, result_type=list[Any]))
        status = decode_reply(packed, b"")
        assert isinstance(status, Status)
        if not status.holders and not status.waiting:
            return ""
        held = ", ".join(f"{each.owner} ({each.token})" for each in status.holders)
        return f"; in its book {len(status.holders)} hold ({held}) and {status.waiting} wait"

    async def _handovers(self) -> int:
        query = f"WorkflowType = '{ids.BROKER}' AND ExecutionStatus = 'ContinuedAsNew'"

        async def count() -> int:
            return len([each async for each in self._client.list_workflows(query)])

        return await steady(count)


def _complaints(*logs: Path) -> Counter[str]:
    """Lines that no fault explains."""
    lines = [line for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
    return Counter(line[:300] for line in lines if _WRONG.search(line))
