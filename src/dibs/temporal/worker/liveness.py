"""What a broker can't see from inside a workflow: whether other runs have closed.

Its activity runs in the worker that serves the broker, with that worker's client.
"""

from collections.abc import Sequence

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from dibs.backends.temporal.broker.watch import OWNER_CLOSED, WAITS

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
    """Of each workflow ID and run ID, whether that run has ended for good; `waits`: whether at all."""
    client = activity.client()
    return [await _has_closed(client, run[0], run[1], *run[2:]) for run in runs]


async def _has_closed(client: Client, workflow_id: str, run_id: str, *about: str) -> bool:
    """One that can't be told counts as open, and does not keep the others from being told."""
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True  # long gone
        activity.logger.warning("It can't be told whether %s has closed: %s", workflow_id, error)
        return False
    continued = found.status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    return found.status in _CLOSED or (WAITS in about and continued)
