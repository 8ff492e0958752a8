"""Workers on task queues of their own, and looks at workflows from outside."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from tests.servers.temporal import TemporalServer

PATIENCE = 60.0
"""Seconds that a test waits for what has to happen, on a loaded machine."""


def unique(name: str = "test") -> str:
    return f"{name}-{uuid4().hex[:12]}"


async def connected(server: TemporalServer) -> Client:
    return await Client.connect(server.address, identity="a worker of the tests")


@asynccontextmanager
async def worker(
    client: Client,
    *workflows: type,
    queue: str | None = None,
    activities: Sequence[Callable[..., Any]] = (),
    sandboxed: bool = True,
    cached: bool = True,
    **more: Any,
) -> AsyncIterator[str]:
    """A worker for the block; yields the name of its queue.

    Without `cached`, each workflow task replays the whole history.
    """
    queue = queue or unique("queue")
    if not sandboxed:
        more["workflow_runner"] = UnsandboxedWorkflowRunner()
    if not cached:
        more["max_cached_workflows"] = 0
    async with Worker(
        client, task_queue=queue, workflows=list(workflows), activities=list(activities), **more
    ):
        yield queue


async def poll[T](
    get: Callable[[], Awaitable[T]], accepts: Callable[[T], object] = bool, *, every: float = 0.02
) -> T:
    """Look until the value is accepted; returns it."""
    async with asyncio.timeout(PATIENCE):
        while not accepts(found := await get()):
            await asyncio.sleep(every)
    return found


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


async def status_of(client: Client, workflow_id: str, run_id: str | None = None) -> str:
    """`RUNNING`, `COMPLETED`, …; empty for a workflow that does not exist."""
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return ""
    return found.status.name if found.status is not None else ""


async def until_closed(client: Client, workflow_id: str) -> str:
    """Its final status."""
    is_open = ("", WorkflowExecutionStatus.RUNNING.name)
    return await poll(lambda: status_of(client, workflow_id), lambda status: status not in is_open)


async def failure_of(handle: WorkflowHandle[Any, Any]) -> ApplicationError:
    """The error that a workflow has failed with."""
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError), caught.value.cause
    return caught.value.cause


def kinds(history: WorkflowHistory) -> list[str]:
    """Types of its events, in order, without `EVENT_TYPE_`."""
    return [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events
    ]


def count(history: WorkflowHistory) -> Counter[str]:
    """Number of events of each type."""
    return Counter(kinds(history))


async def until_event(handle: WorkflowHandle[Any, Any], kind: str, times: int = 1) -> None:
    """Wait for so many events of a type."""
    await poll(handle.fetch_history, lambda history: count(history)[kind] >= times)


async def replay(
    history: WorkflowHistory, *workflows: type, sandboxed: bool = False, **more: Any
) -> None:
    """Run today's code against a history. Raises if it does anything else."""
    runner = SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()
    replayer = Replayer(workflows=list(workflows), workflow_runner=runner, **more)
    await replayer.replay_workflow(history)


async def reset_to[T](
    client: Client,
    handle: WorkflowHandle[Any, Any],
    event: int,
    result: type[T] | None = None,
    *,
    run_id: str | None = None,
) -> WorkflowHandle[Any, T]:
    """Reset a workflow's run, its first by default, to an event; returns the run that goes on from there."""
    run_id = run_id or handle.first_execution_run_id or ""
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run_id),
        workflow_task_finish_event_id=event,
        reason="a test",
        request_id=unique(),
    )
    reset = await client.workflow_service.reset_workflow_execution(
        request, timeout=timedelta(seconds=10)
    )
    return client.get_workflow_handle(handle.id, run_id=reset.run_id, result_type=result)
