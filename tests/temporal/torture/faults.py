"""What strikes: drawn from the seed, so the same one strikes in the same order."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crew, Crews
from tests.temporal.torture.crowd import Crowd
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.marks import Watch, struck
from tests.temporal.torture.operators import Operator
from tests.temporal.torture.pace import found, steady
from tests.temporal.torture.plan import Plan

if TYPE_CHECKING:
    pass

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
"""Where there are permits that are workflows."""
OF_PROGRAMS = ("program killed", "program paused")
"""Where there are plain programs."""
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
        self.operator = Operator(client, diary, self._draw)
        none: tuple[str, ...] = OF_PERMITS if plan.mode == "fair" else ()
        none += () if plan.programs else OF_PROGRAMS
        self._weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in none}
        self._strikes: dict[str, Callable[[], Awaitable[bool]]] = {
            "worker killed": partial(self._kill, crews.workers),
            "worker paused": partial(self._pause, crews.workers),
            "program killed": partial(self._kill, crews.plain),
            "program paused": partial(self._pause, crews.plain),
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

    def _target(self, crew: Crew) -> int:
        """Mostly one that holds, if it is known who does: those who wait are struck anyway."""
        self._watch.look()
        holding = [each for each in crew.awake if crew.process(each) in self._watch.programs]
        mostly = holding and self._draw.random() < MOSTLY
        return self._draw.choice(holding if mostly else crew.awake)

    async def _kill(self, crew: Crew) -> bool:
        if len(crew.awake) < 2:
            return False  # somebody has to go on
        crew.kill(self._target(crew))
        return True

    async def _pause(self, crew: Crew) -> bool:
        if len(crew.awake) < 2:
            return False
        seconds = self._draw.choice(PAUSES) * self._plan.lease
        crew.pause(self._target(crew), seconds)
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
        victim = self._draw.choice(holding if holding and self._draw.random() < MOSTLY else anybody)
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
        return await self.operator.free_one(
            self._crowd.resources, lambda permit: permit.terminate("torture")
        )

    async def _cancel_permit(self) -> bool:
        return await self.operator.free_one(self._crowd.resources, lambda permit: permit.cancel())
