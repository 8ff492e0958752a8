"""What strikes: drawn from the seed, so the same faults strike in the same order."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from dibs.stores.temporal import ids
from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crew, Crews
from tests.temporal.torture.crowd import Crowd, found, steady
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import Diary, Watch, cleared, struck

WEIGHTS = {
    "worker killed": 20,
    "worker paused": 16,
    "program killed": 14,
    "program paused": 6,
    "server killed": 6,
    "server restarted": 4,
    "holder terminated": 14,
    "holder cancelled": 14,
    "holder reset": 14,
    "permit terminated": 6,
    "permit cancelled": 6,
}
OF_PERMITS = ("permit terminated", "permit cancelled")
"""By an operator, in slot mode. From then on only fencing protects."""
OF_PROGRAMS = ("program killed", "program paused")
MOSTLY = 0.8
"""The part of those who are struck while they hold, if anybody does."""
PAUSES = (0.5, 1.0, 3.0)
"""In leases."""


class Faults:
    """Strikes one after the other, and counts."""

    def __init__(
        self,
        client: Client,
        server: TemporalServer,
        crews: Crews,
        crowd: Crowd,
        watch: Watch,
        diary: Diary,
        plan: Plan,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client, self._server, self._crowd = client, server, crowd
        self._watch, self._diary, self._plan = watch, diary, plan
        self._draw = random.Random(plan.seed)
        self._freed: list[tuple[float, str, int, int]] = []
        """Slots whose permits were ended: from when, name, slot, and the time in microseconds by which."""
        none: tuple[str, ...] = OF_PERMITS if plan.mode == "fair" else ()
        none += () if plan.programs else OF_PROGRAMS
        self._weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in none}
        self._strikes: dict[str, Callable[[], Awaitable[bool]]] = {
            "worker killed": partial(self._process, crews.workers, self._kill),
            "worker paused": partial(self._process, crews.workers, self._pause),
            "program killed": partial(self._process, crews.plain, self._kill),
            "program paused": partial(self._process, crews.plain, self._pause),
            "server killed": self._kill_server,
            "server restarted": self._restart_server,
            "holder terminated": partial(self._holder, lambda holder: holder.terminate("torture")),
            "holder cancelled": partial(self._holder, lambda holder: holder.cancel()),
            "holder reset": self._reset,
            "permit terminated": partial(self._permit, lambda permit: permit.terminate("torture")),
            "permit cancelled": partial(self._permit, lambda permit: permit.cancel()),
        }

    async def strike(self) -> None:
        """One fault; none if there was nothing to strike."""
        kind = self._next()
        if await self._strikes[kind]():
            self.counts[kind] += 1
            self._diary.disturbed(0)

    def _next(self) -> str:
        if self._plan.kinds:
            return self._plan.kinds[self.counts.total() % len(self._plan.kinds)]
        return self._draw.choices(list(self._weights), list(self._weights.values()))[0]

    async def _process(self, crew: Crew, strike: Callable[[Crew, int], None]) -> bool:
        """Mostly one that holds, if it is known who does: those who wait are struck anyway."""
        if len(crew.awake) < 2:
            return False  # somebody has to go on
        self._watch.look()
        holding = [each for each in crew.awake if crew.process(each) in self._watch.programs]
        mostly = holding and self._draw.random() < MOSTLY
        strike(crew, self._draw.choice(holding if mostly else crew.awake))
        return True

    def _kill(self, crew: Crew, number: int) -> None:
        crew.kill(number)

    def _pause(self, crew: Crew, number: int) -> None:
        crew.pause(number, self._draw.choice(PAUSES) * self._plan.lease)

    async def _kill_server(self) -> bool:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)
        return True

    async def _restart_server(self) -> bool:
        await asyncio.to_thread(self._server.restart)
        return True

    def _victim(self) -> WorkflowHandle[Any, Any] | None:
        """Mostly a holder that holds; those who wait deserve it too."""
        self._watch.look()
        holding = [each for each in self._watch.holders if each in self._crowd.open]
        anybody = list(self._crowd.open)
        if not anybody:
            return None
        victim = self._draw.choice(holding if holding and self._draw.random() < MOSTLY else anybody)
        self._diary.record(struck(self._diary.now(), victim))
        return self._client.get_workflow_handle(victim)

    async def _holder(self, end: Callable[[WorkflowHandle[Any, Any]], Awaitable[None]]) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        await found(lambda: end(victim))
        return True

    async def _reset(self) -> bool:
        """To its first task."""
        victim = self._victim()
        history = await found(victim.fetch_history) if victim is not None else None
        completed = [
            event.event_id
            for event in (history.events if history else ())
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        if history is None or not completed:
            return False
        request = ResetWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=history.workflow_id, run_id=history.run_id
            ),
            workflow_task_finish_event_id=completed[0],
            reason="torture",
            request_id=f"{self._draw.getrandbits(64):x}",
        )
        service = self._client.workflow_service
        with contextlib.suppress(RPCError):  # it has just ended, say
            await steady(lambda: service.reset_workflow_execution(request))
            return True
        return False

    async def _permit(self, end: Callable[[WorkflowHandle[Any, Any]], Awaitable[None]]) -> bool:
        """As an operator ends one. A worker has to handle a cancellation first."""
        resources = self._crowd.resources
        slots = [(name, slot) for name, many in resources.items() for slot in range(many)]
        self._draw.shuffle(slots)
        for name, slot in slots:
            permit = self._client.get_workflow_handle(ids.permit_workflow_id(name, str(slot)))
            if not (run_id := await self._run_of(permit)):
                continue
            at = self._diary.now()
            this_run = self._client.get_workflow_handle(permit.id, run_id=run_id)
            await found(lambda: end(this_run))  # noqa: B023 - awaited here
            for _ in range(50):
                if not await self._run_of(this_run):
                    break
                await asyncio.sleep(0.1)
            self._freed.append((at, name, slot, time.time_ns() // 1000))
            return True
        return False

    async def _run_of(self, permit: WorkflowHandle[Any, Any]) -> str | None:
        """The run's ID while it is open."""
        described = await found(permit.describe)
        if described is None or described.status != WorkflowExecutionStatus.RUNNING:
            return None
        return described.run_id

    def record_freed(self) -> None:
        """Whose holds the operator has ended."""
        for at, name, slot, ended in self._freed:
            self._diary.record(cleared(at, f"semaphore:{name}", (slot,), ended))
