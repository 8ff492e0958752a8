"""The operator: ends the permits of slots, and finds out afterwards what that has freed."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from dibs.backends.temporal.protocol import ids
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.marks import cleared
from tests.temporal.torture.steady import found

type Permit = WorkflowHandle[Any, Any]


class Freed(NamedTuple):
    """A slot whose permit was ended."""

    at: float
    name: str
    slot: int
    ended: int
    """In microseconds since 1970: by then it had."""


class Operator:
    """Whoever has a slot that it frees has it no more: from then on only fencing protects."""

    def __init__(self, client: Client, diary: Diary, draw: random.Random) -> None:
        self._client, self._diary, self._draw = client, diary, draw
        self._freed: list[Freed] = []

    async def free_one(
        self, resources: dict[str, int], end: Callable[[Permit], Awaitable[None]]
    ) -> bool:
        """Whether there was any permit to be ended."""
        slots = [(name, slot) for name, many in resources.items() for slot in range(many)]
        self._draw.shuffle(slots)
        for name, slot in slots:
            permit = self._client.get_workflow_handle(ids.permit_workflow_id(name, str(slot)))
            described = await found(permit.describe)
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                continue
            at = self._diary.now()
            await self._see_ended(
                self._client.get_workflow_handle(permit.id, run_id=described.run_id), end
            )
            self._freed.append(Freed(at, name, slot, time.time_ns() // 1000))
            return True
        return False

    async def _see_ended(self, permit: Permit, end: Callable[[Permit], Awaitable[None]]) -> None:
        """A worker has to hear of a cancellation first."""
        await found(lambda: end(permit))
        for _ in range(50):
            described = await found(permit.describe)
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                return
            await asyncio.sleep(0.1)

    def write_down(self) -> None:
        """Whose holds it has ended."""
        for freed in self._freed:
            key = f"semaphore:{freed.name}"
            self._diary.record(cleared(freed.at, key, (freed.slot,), freed.ended))
