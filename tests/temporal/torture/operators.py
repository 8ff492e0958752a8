"""The operator: ends the permits of slots, and finds out afterwards what that has freed."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)

from dibs.core.codec import decode_reply
from dibs.model import Status
from dibs.stores.temporal import ids
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.marks import cleared
from tests.temporal.torture.pace import found, steady
from tests.temporal.torture.plan import Plan

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


_LINGERING = (ids.BROKER,)
"""It takes a minute to end after those who were killed."""


async def left_open(client: Client, plan: Plan) -> list[str]:
    """What still runs once everything should be over; in plain words."""
    until = time.monotonic() + plan.patience
    while (left := [each async for each in _open(client, plan)]) and time.monotonic() < until:
        await asyncio.sleep(0.3)
    return left


async def _open(client: Client, plan: Plan) -> AsyncIterator[str]:
    listed = client.list_workflows("ExecutionStatus = 'Running'")
    for each in [each async for each in listed]:
        handle = client.get_workflow_handle(each.id, run_id=each.run_id)
        described = await found(handle.describe)  # the list may be a little behind
        if described is None or described.status != WorkflowExecutionStatus.RUNNING:
            continue
        book = await _book(client, described)
        if book or plan.to_the_end or described.workflow_type not in _LINGERING:
            yield f"{described.workflow_type} {each.id} is open{_trouble(described)}{book}"


def _trouble(described: WorkflowExecutionDescription) -> str:
    task = described.raw_description.pending_workflow_task
    return f", and its task was tried {task.attempt} times" if task.attempt > 1 else ""


async def _book(client: Client, described: WorkflowExecutionDescription) -> str:
    """What a broker keeps."""
    if described.workflow_type != ids.BROKER:
        return ""
    handle = client.get_workflow_handle(described.id)
    packed = await steady(lambda: handle.query(ids.STATUS, result_type=list[Any]))
    status = decode_reply(packed, b"")
    assert isinstance(status, Status)
    if not status.holders and not status.waiting:
        return ""
    held = ", ".join(f"{each.owner} ({each.token})" for each in status.holders)
    return f"; in its book {len(status.holders)} hold ({held}) and {status.waiting} wait"


async def told_of(client: Client, workflow: str) -> str:
    """A holder that does not end: what it waits for."""
    handle = client.get_workflow_handle(workflow)
    described = await steady(handle.describe)
    raw = described.raw_description
    history = await steady(handle.fetch_history)
    last = [EventType.Name(event.event_type)[11:].lower() for event in history.events[-6:]]
    return (
        f"{workflow}{_trouble(described)}, {len(raw.pending_activities)} activities and "
        f"{len(raw.pending_children)} children under way, {len(history.events)} events, "
        f"the last: {', '.join(last)}"
    )


async def keep_histories(client: Client, folder: Path) -> None:
    """Of all that is open, for whoever looks into what went wrong."""
    async for each in client.list_workflows("ExecutionStatus = 'Running'"):
        handle = client.get_workflow_handle(each.id, run_id=each.run_id)
        history = await found(handle.fetch_history)
        if history is not None:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", each.id)
            (folder / f"open-{name}.json").write_text(history.to_json())
