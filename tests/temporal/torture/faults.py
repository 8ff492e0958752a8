"""What strikes: drawn from the seed, so the same faults strike in the same order."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import ModuleCrew
from tests.temporal.torture.crowd import Crowd, found, steady
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import Watch
from tests.temporal.workers import reset_to

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
}
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
        workers: ModuleCrew,
        programs: ModuleCrew,
        crowd: Crowd,
        watch: Watch,
        plan: Plan,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client, self._server, self._crowd = client, server, crowd
        self._watch, self._recorder, self._plan = watch, workers.recorder, plan
        self._draw = random.Random(plan.seed)
        none = () if plan.programs else OF_PROGRAMS
        self._weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in none}
        self._strikes: dict[str, Callable[[], Awaitable[bool]]] = {
            "worker killed": partial(self._process, workers, ModuleCrew.kill),
            "worker paused": partial(self._process, workers, self._pause),
            "program killed": partial(self._process, programs, ModuleCrew.kill),
            "program paused": partial(self._process, programs, self._pause),
            "server killed": self._kill_server,
            "server restarted": self._restart_server,
            "holder terminated": partial(self._holder, lambda holder: holder.terminate("torture")),
            "holder cancelled": partial(self._holder, lambda holder: holder.cancel()),
            "holder reset": self._reset,
        }

    async def strike(self) -> None:
        """One fault; none if there was nothing to strike."""
        kind = self._next()
        if await self._strikes[kind]():
            self.counts[kind] += 1
            self._recorder.disturbed(0)

    def _next(self) -> str:
        if self._plan.kinds:
            return self._plan.kinds[self.counts.total() % len(self._plan.kinds)]
        return self._draw.choices(list(self._weights), list(self._weights.values()))[0]

    async def _process(self, crew: ModuleCrew, strike: Callable[[ModuleCrew, int], object]) -> bool:
        """Mostly one that holds, if it is known who does: those who wait are struck anyway."""
        if len(crew.awake) < 2:
            return False  # somebody has to go on
        self._watch.look()
        holding = [each for each in crew.awake if crew.process(each) in self._watch.programs]
        mostly = holding and self._draw.random() < MOSTLY
        strike(crew, self._draw.choice(holding if mostly else crew.awake))
        return True

    def _pause(self, crew: ModuleCrew, number: int) -> None:
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
        self._recorder.disturbed(0)
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
        if victim is None or history is None or not completed:
            return False
        reset, run = partial(reset_to, self._client, victim, completed[0]), history.run_id
        with contextlib.suppress(RPCError):  # it has just ended, say
            await steady(lambda: reset(run_id=run))
            return True
        return False
