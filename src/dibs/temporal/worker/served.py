"""What a worker of the permit queue serves, and how it is put beside what a user's worker has already."""

from collections.abc import Callable, Sequence
from typing import Any

from dibs.backends.temporal.broker.mailbox import DibsMailbox
from dibs.backends.temporal.broker.workflow import DibsBroker
from dibs.temporal.sdk import activity_name, workflow_name
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed

WORKFLOWS: tuple[type, ...] = (PermitSlotWorkflow, DibsBroker, DibsMailbox)
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
