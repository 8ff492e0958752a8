"""Calls where they can't work are refused, with the right line: in a running loop, in a workflow."""

import sys

IN_WORKFLOWS = frozenset({"Lock", "Semaphore"})
"""What `dibs.temporal` has for workflow code."""


def refuse_in_loop(of: object) -> None:
    """Waiting here would stop every task of the loop, the one that should release included.

    Who has a loop has imported asyncio; threads needn't.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        refuse_in_workflow(of)
        raise RuntimeError(_help(type(of).__name__))


def refuse_in_workflow(of: object = None, name: str = "") -> None:
    """A store is I/O, and workflow code is replayed: what it is to do it has to ask Temporal for.

    Who runs a workflow has imported it. The error is Temporal's own, so that it fails the workflow, and
    doesn't try its task again for ever.
    """
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is not None and workflow.in_workflow():
        error = sys.modules["temporalio.exceptions"].ApplicationError
        raise error(
            _in_workflow(name or type(of).__name__), type="NotInWorkflow", non_retryable=True
        )


def _help(name: str) -> str:
    if name == "Client":
        write = "`from dibs import connect`, and await the client's methods"
    else:
        write = f"`from dibs import {name}` and write `async with {name}(...)`"
    return f"a blocking {name} inside a running event loop would stop the loop: {write}"


def _in_workflow(name: str) -> str:
    name = "RWLock" if name in {"Reading", "Writing"} else name
    if name in IN_WORKFLOWS:
        write = f"`from dibs.temporal import {name}` here, or use this one in an activity"
    else:
        write = "use it in an activity; `dibs.temporal` has Lock and Semaphore for workflows"
    return f"dibs's {name} talks to a store, which workflow code can't: {write}"
