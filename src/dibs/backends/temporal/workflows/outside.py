"""Signals to one run of another workflow, from workflow code."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.backends.temporal.unheeded import unheeded

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
