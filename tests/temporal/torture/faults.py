"""What strikes: drawn from the seed, so the same one strikes in the same order."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from leasehold.backends.temporal import ids
from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crew
from tests.temporal.torture.crowd import Crowd
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.marks import cleared, struck
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.steady import found, steady
from tests.temporal.torture.watch import Watch

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

WEIGHTS = {
    "worker killed": 20,
    "worker paused": 16,
    "server killed": 6,
    "server restarted": 4,
    "holder terminated": 14,
    "holder cancelled": 14,
    "holder reset": 14,
    "permit terminated": 6,
    "permit cancelled": 6,
}
OF_PERMITS = ("permit terminated", "permit cancelled")
"""Where there are permits that are workflows."""
PAUSES = (0.5, 1.0, 3.0)
"""In leases."""


class Faults:
    """Strikes one after the other, and counts."""

    def __init__(
        self,
        client: Client,
        server: TemporalServer,
        crew: Crew,
        crowd: Crowd,
        watch: Watch,
        diary: Diary,
        plan: Plan,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client, self._server, self._crew, self._crowd = client, server, crew, crowd
        self._watch, self._diary, self._plan = watch, diary, plan
        self._draw = random.Random(plan.seed)
        self._weights = {
            kind: weight
            for kind, weight in WEIGHTS.items()
            if plan.mode != "fair" or plan.share or kind not in OF_PERMITS
        }
        self._strikes: dict[str, Callable[[], Awaitable[bool]]] = {
            "worker killed": self._kill,
            "worker paused": self._pause,
            "server killed": self._kill_server,
            "server restarted": self._restart_server,
            "holder terminated": self._terminate,
            "holder cancelled": self._cancel,
            "holder reset": self._reset,
            "permit terminated": self._end_permit,
            "permit cancelled": self._cancel_permit,
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

    # -- processes ----------------------------------------------------------------------------------

    async def _kill(self) -> bool:
        if len(self._crew.awake) < 2:
            return False  # somebody has to go on
        self._crew.kill(self._draw.choice(self._crew.awake))
        return True

    async def _pause(self) -> bool:
        if len(self._crew.awake) < 2:
            return False
        seconds = self._draw.choice(PAUSES) * self._plan.lease
        self._crew.pause(self._draw.choice(self._crew.awake), seconds)
        return True

    async def _kill_server(self) -> bool:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)
        return True

    async def _restart_server(self) -> bool:
        await asyncio.to_thread(self._server.restart)
        return True

    # -- holders ------------------------------------------------------------------------------------

    def _victim(self) -> str | None:
        """Mostly somebody who holds; those who wait deserve it too."""
        self._watch.look()
        holding = [each for each in self._watch.holders if each in self._crowd.open]
        anybody = list(self._crowd.open)
        if not anybody:
            return None
        victim = self._draw.choice(holding if holding and self._draw.random() < 0.8 else anybody)
        self._diary.record(struck(self._diary.now(), victim))
        self._crowd.struck.add(victim)
        return victim

    async def _terminate(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        handle = self._client.get_workflow_handle(victim)
        await found(lambda: handle.terminate("torture"))
        return True

    async def _cancel(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        handle = self._client.get_workflow_handle(victim)
        await found(handle.cancel)
        return True

    async def _reset(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        handle = self._client.get_workflow_handle(victim)
        history = await found(handle.fetch_history)
        completed = [
            event.event_id
            for event in (history.events if history else ())
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        if history is None or not completed:
            return False
        request = ResetWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=victim, run_id=history.run_id),
            workflow_task_finish_event_id=completed[0],
            reason="torture",
            request_id=f"{self._draw.getrandbits(64):x}",
        )
        service = self._client.workflow_service
        with contextlib.suppress(RPCError):  # it has just ended, say
            await steady(lambda: service.reset_workflow_execution(request))
            return True
        return False

    # -- permits ------------------------------------------------------------------------------------

    async def _end_permit(self) -> bool:
        return await self._clear(lambda permit: permit.terminate("torture"))

    async def _cancel_permit(self) -> bool:
        return await self._clear(lambda permit: permit.cancel())

    async def _clear(
        self, end: "Callable[[WorkflowHandle[object, object]], Awaitable[None]]"
    ) -> bool:
        """An operator frees a slot: from then on only fencing protects from who had it."""
        slots = [
            (name, slot)
            for name, capacity in self._crowd.resources.items()
            for slot in range(capacity)
        ]
        self._draw.shuffle(slots)
        for name, slot in slots:
            permit = self._client.get_workflow_handle(ids.permit_id(name, str(slot)))
            described = await found(permit.describe)
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                continue
            at = self._diary.now()
            run = self._client.get_workflow_handle(permit.id, run_id=described.run_id)
            await self._see_ended(run, end)
            token = time.time_ns() // 1000
            self._diary.record(cleared(at, f"semaphore:{name}", (slot,), token))
            return True
        return False

    async def _see_ended(
        self,
        permit: "WorkflowHandle[object, object]",
        end: "Callable[[WorkflowHandle[object, object]], Awaitable[None]]",
    ) -> None:
        """A worker has to hear of a cancellation first."""
        await found(lambda: end(permit))
        for _ in range(50):
            described = await found(permit.describe)
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                return
            await asyncio.sleep(0.1)
