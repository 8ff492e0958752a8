"""What a broker can't see from inside a workflow: whether other runs have closed.

Its activity runs in the worker that serves the broker, with that worker's client.
"""

from collections.abc import Sequence

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from leasehold.backends.temporal.broker_watch import OWNER_CLOSED

_CLOSED = {
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT,
}
"""Not one that continued as new: what it held may go on with its next run."""


@activity.defn(name=OWNER_CLOSED)
async def owner_closed(runs: Sequence[Sequence[str]]) -> list[bool]:
    """Of each workflow ID and run ID, whether that run has ended for good."""
    client = activity.client()
    return [await _has_closed(client, run[0], run[1]) for run in runs]


async def _has_closed(client: Client, workflow_id: str, run_id: str) -> bool:
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True  # long gone
        raise
    return found.status in _CLOSED
