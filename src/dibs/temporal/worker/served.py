"""The workflows and activities that a worker of the permit queue serves, beside a user's own."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from dibs.temporal.broker.owners import OWNER_CLOSED, WAITS
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
"""Without continued-as-new: the next run may hold what the run held."""


@activity.defn(name=OWNER_CLOSED)
async def owner_closed(runs: Sequence[Sequence[str]]) -> list[bool]:
    """For each workflow ID and run ID: whether the run has closed. `waits`: see `WAITS`."""
    client = activity.client()
    return [await _has_closed(client, run[0], run[1], *run[2:]) for run in runs]


async def _has_closed(client: Client, workflow_id: str, run_id: str, *about: str) -> bool:
    """Whether a run has closed. If the server does not say so, it counts as open."""
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
    """Add our workflows. A user's workflow of the same name wins."""
    return _joined(given or (), WORKFLOWS, workflow_name)


def with_permits(given: Sequence[type]) -> list[type]:
    """Add `PermitSlotWorkflow`. A user's workflow of the same name wins."""
    return _joined(given, WORKFLOWS[:1], workflow_name)


def with_our_activities(given: Sequence[Callable[..., Any]] | None) -> list[Callable[..., Any]]:
    """Add our activity. A user's activity of the same name wins."""
    return _joined(given or (), ACTIVITIES, activity_name)


def _joined[T](
    given: Sequence[T], ours: Sequence[T], name_of: Callable[[T], str | None]
) -> list[T]:
    taken = {name_of(each) for each in given}
    return [*given, *(each for each in ours if name_of(each) not in taken)]
