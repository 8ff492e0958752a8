"""Workers for a test, each on a task queue of its own, and what one wants to know of workflows afterwards."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

if TYPE_CHECKING:
    from tests.servers.temporal import TemporalServer

PATIENCE = 60.0
"""So long a test waits for what has to come, on a loaded machine."""


def unique(name: str = "test") -> str:
    """A name that no other test has."""
    return f"{name}-{uuid4().hex[:12]}"


async def connected(server: "TemporalServer") -> Client:
    """A client of the namespace `default`."""
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
    """A worker for the block; the name of its queue.

    Without `cached` every workflow is replayed from its history for each of its tasks.
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


async def status_of(client: Client, workflow_id: str, run_id: str | None = None) -> str:
    """`RUNNING`, `COMPLETED`, `TERMINATED` …; empty for one that isn't there."""
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return ""
    return found.status.name if found.status is not None else ""


async def until(
    what: Callable[[], Awaitable[bool]], *, within: float = PATIENCE, every: float = 0.05
) -> None:
    """Wait for something that is to be seen only by looking."""
    async with asyncio.timeout(within):
        while not await what():
            await asyncio.sleep(every)


async def until_at_rest(client: Client, *workflow_ids: str) -> None:
    """Until these workflows have no task open.

    One that a worker gets while it leaves is another's only after ten seconds.
    """

    async def at_rest() -> bool:
        for workflow_id in workflow_ids:
            history = await client.get_workflow_handle(workflow_id).fetch_history()
            if not history.events[-1].HasField("workflow_task_completed_event_attributes"):
                return False
        return True

    for _ in range(2):  # what one does last may be a task for another
        await until(at_rest)


async def until_closed(client: Client, workflow_id: str, run_id: str | None = None) -> str:
    """How a workflow has ended."""
    last = ""

    async def closed() -> bool:
        nonlocal last
        last = await status_of(client, workflow_id, run_id)
        return last not in ("", WorkflowExecutionStatus.RUNNING.name)

    await until(closed)
    return last


async def history_of(
    client: Client, workflow_id: str, run_id: str | None = None
) -> WorkflowHistory:
    """All events of one run."""
    return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()


def kinds(history: WorkflowHistory) -> list[str]:
    """The types of its events, in order, without `EVENT_TYPE_`."""
    return [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events
    ]


def count(history: WorkflowHistory) -> Counter[str]:
    """How many events of each type."""
    return Counter(kinds(history))


async def replay(history: WorkflowHistory, *workflows: type, sandboxed: bool = True) -> None:
    """Run today's code against it. Raises if that would have done anything else."""
    replayer = (
        Replayer(workflows=list(workflows))
        if sandboxed
        else Replayer(workflows=list(workflows), workflow_runner=UnsandboxedWorkflowRunner())
    )
    await replayer.replay_workflow(history)


async def reset_to(client: Client, workflow_id: str, run_id: str, event: int) -> str:
    """Reset a workflow; the run ID of the run that goes on from that event."""
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        workflow_task_finish_event_id=event,
        reason="a test",
        request_id=unique(),
    )
    reset = await client.workflow_service.reset_workflow_execution(
        request, timeout=timedelta(seconds=10)
    )
    return reset.run_id
