"""Whether anybody serves a task queue, as the server knows it from those who poll.

It tells when they polled by its own clock, and ours may say anything else: that a poll was long ago proves
nothing. That there was none is certain, as the server remembers each for some minutes.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from dibs.stores.temporal.client.settings import Target
from dibs.stores.temporal.client.trouble import explain

if TYPE_CHECKING:
    from temporalio.client import Client

ALIVE = 90.0
"""A worker asks for work about once a minute: one that has not for so long is gone, or our clock is off."""

LOOK = timedelta(seconds=2)


type Attended = Literal["yes", "unsure", "no"]
"""Whether somebody serves a queue. `unsure`: to ask a broker tells."""


async def last_heard(client: "Client", queue: str) -> float | None:
    """How long ago a worker of this queue was heard of, in seconds by our clock; None: there is none."""
    return min(ages(await polled(client, queue)), default=None)


def attended(heard: float | None) -> Attended:
    """What that means."""
    if heard is None:
        return "no"
    return "yes" if heard < ALIVE else "unsure"


def ages(polls: Sequence[float]) -> list[float]:
    """How long ago that was, in seconds by our clock."""
    return [max(time.time() - each, 0.0) for each in polls]


async def queue_of(client: "Client", workflow_id: str) -> str | None:
    """The queue that a workflow stays on; None if it does not run, or nobody can tell."""
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError

    try:
        found = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=LOOK)
    except RPCError:
        return None
    return found.task_queue if found.status is WorkflowExecutionStatus.RUNNING else None


async def polled(client: "Client", queue: str) -> list[float]:
    """When each of the queue's workers asked for workflow tasks, in seconds since 1970."""
    return list((await pollers(client, queue)).values())


async def pollers(client: "Client", queue: str) -> dict[str, float]:
    """Likewise, by the workers' identities; one that has ended is remembered for some minutes."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
    from temporalio.service import RPCError

    question = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        found = await client.workflow_service.describe_task_queue(
            question, retry=True, timeout=LOOK
        )
    except RPCError as error:
        raise explain(error, Target.of(client)) from error
    return {
        poller.identity: poller.last_access_time.ToNanoseconds() / 1e9 for poller in found.pollers
    }
