"""A permit as its holder sees it, be that a workflow or a broker: how it is started, and what it is told."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol import permits as said
from dibs.stores.temporal.protocol.permits import Adoption, PermitSlotInput
from dibs.stores.temporal.unheeded import unheeded

GONE = "ExternalWorkflowExecutionNotFound"
"""What Temporal calls it that a signal's target has ended or has never been."""

_NO_ARGUMENT: Any = object()


async def signal_run(workflow_id: str, run_id: str, name: str, arg: Any = _NO_ARGUMENT) -> bool:
    """Whether it was recorded in that very run; False if the run is over.

    A delivered signal is in the history of a running workflow, and is handled before it can end.

    Who is cancelled meanwhile no longer waits for it, and it goes on: were it cancelled in the moment in
    which its end is told, Temporal would take that for an error in the history, at each new try.
    """
    signalling = _signal(workflow_id, run_id, name, arg)
    return await asyncio.shield(unheeded(asyncio.create_task(signalling)))


async def _signal(workflow_id: str, run_id: str, name: str, arg: Any) -> bool:
    run = workflow.get_external_workflow_handle(workflow_id, run_id=run_id)
    try:
        if arg is _NO_ARGUMENT:
            await run.signal(name)
        else:
            await run.signal(name, arg)
    except ApplicationError as error:
        if error.type == GONE:
            return False
        raise
    return True


type Child = workflow.ChildWorkflowHandle[Any, str]


async def start_permit(
    given: PermitSlotInput,
    *,
    summary: str,
    task_queue: str | None = None,
    timeout: timedelta | None = None,
    on_close: ParentClosePolicy = ParentClosePolicy.ABANDON,
) -> Child | None:
    """Have a slot's permit, which is this workflow's from then on; None where somebody has it.

    `on_close`: what becomes of it when this workflow ends. To be run in a task that nobody cancels: whether
    it has taken the slot has to be known.
    """
    try:
        return await workflow.start_child_workflow(
            ids.PERMIT,
            given,
            id=ids.permit_workflow_id(given.resource, given.slot),
            task_queue=task_queue,
            execution_timeout=timeout,
            result_type=str,
            parent_close_policy=on_close,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=summary,
        )
    except WorkflowAlreadyStartedError:
        return None


@dataclass(frozen=True, slots=True)
class PermitRun:
    """One permit, told apart from later ones in the same slot by its run ID.

    What it is told returns whether it was still there: that is in its history then, and is heeded before
    it can end. Raises `FailureError` where the server refuses.
    """

    id: str
    """The workflow ID, which is the lock."""
    run_id: str

    async def extend(self, seconds: float) -> bool:
        """It stands for so long from now, or as long as it did."""
        return await signal_run(self.id, self.run_id, said.EXTEND, seconds)

    async def release(self) -> bool:
        """Its holder is done."""
        return await signal_run(self.id, self.run_id, said.RELEASE)

    async def retire(self) -> bool:
        """Its holder was stopped: it keeps the slot for its quarantine."""
        return await signal_run(self.id, self.run_id, said.RETIRE)

    async def hand_over(self) -> bool:
        """Its holder's run ends, and the next one adopts it."""
        return await signal_run(self.id, self.run_id, said.HAND_OVER)

    async def adopt(self, by: Adoption) -> bool:
        """Another run holds it from now on."""
        return await signal_run(self.id, self.run_id, said.ADOPT, by)
