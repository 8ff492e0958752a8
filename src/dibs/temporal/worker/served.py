"""What a worker of the permit queue serves, and how it is put beside what a user's worker has already."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from dibs.temporal.broker.watch import OWNER_CLOSED, WAITS
from dibs.temporal.broker.workflow import DibsBroker
from dibs.temporal.sdk import activity_name, workflow_name
from dibs.temporal.slots.workflow import PermitSlotWorkflow

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


WORKFLOWS: tuple[type, ...] = (PermitSlotWorkflow, DibsBroker)
ACTIVITIES: tuple[Callable[..., Any], ...] = (owner_closed,)


def with_our_workflows(given: Sequence[type] | None) -> list[type]:
    """These and ours; one of theirs that goes by the name of one of ours stays, and ours stays out."""
    return _joined(given or (), WORKFLOWS, workflow_name)


def with_permits(given: Sequence[type]) -> list[type]:
    """These and `PermitSlotWorkflow`, unless one of theirs has its name."""
    return _joined(given, WORKFLOWS[:1], workflow_name)


def with_our_activities(given: Sequence[Callable[..., Any]] | None) -> list[Callable[..., Any]]:
    """Likewise."""
    return _joined(given or (), ACTIVITIES, activity_name)


def _joined[T](
    given: Sequence[T], ours: Sequence[T], name_of: Callable[[T], str | None]
) -> list[T]:
    taken = {name_of(each) for each in given}
    return [*given, *(each for each in ours if name_of(each) not in taken)]
