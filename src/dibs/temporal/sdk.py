"""The parts of Temporal's SDK that we need and that have no public name."""

from collections.abc import Callable
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError, CancelledError

# -- workers and activities -------------------------------------------------------------------------


def cancel_here(context: Any) -> None:
    """Cancel a running activity from within its worker, as the server would: its thread is interrupted.

    Tasks are not: they are cancelled by whoever awaits them. A process only sees `is_cancelled()`.
    """
    context.cancelled_event.set()
    raiser = getattr(context.shield_thread_cancel_exception, "__self__", None)
    if raiser is not None:
        raiser.raise_in_thread(CancelledError)


def this_context() -> Any:
    """The running activity's, for `cancel_here`. Raises `RuntimeError` outside of one."""
    return activity._Context.current()


def activity_name(function: Callable[..., Any]) -> str | None:
    """What an activity is called; None for what is none."""
    found = activity._Definition.from_callable(function)
    return None if found is None else found.name


# -- workflows --------------------------------------------------------------------------------------


def workflow_name(kind: type) -> str | None:
    """What a workflow is called; None for what is none."""
    found = workflow._Definition.from_class(kind)
    return None if found is None else found.name


def run_method(kind: type) -> Callable[..., Any] | None:
    """A workflow's; None for what is none."""
    found = workflow._Definition.from_class(kind)
    return None if found is None else found.run_fn


def is_workflow(kind: type) -> bool:
    """Whether a class was decorated with `@workflow.defn`, by itself or in a class that it extends."""
    return hasattr(kind, "__temporal_workflow_definition")


def is_part_of_a_workflow(function: Any) -> bool:
    """Whether a function was decorated as a workflow's run method, signal, query or update."""
    marks = ("workflow_run", "signal_definition", "query_definition", "update_definition")
    return any(hasattr(function, f"__temporal_{mark}") for mark in marks)


# -- errors -----------------------------------------------------------------------------------------

GONE = "ExternalWorkflowExecutionNotFound"
"""Type of the error when the target of a signal has ended or never existed."""


def name_error(error: ApplicationError, name: str, *, retryable: bool) -> None:
    """Have Temporal know an error by that name, also where its `__init__` was called without."""
    error._type = name
    error._non_retryable = not retryable
