"""The parts of Temporal's SDK that we need and that have no public name."""

from collections.abc import Callable
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError, CancelledError

# -- workers and activities -------------------------------------------------------------------------


def cancel_here(context: Any) -> None:
    """Cancel a running activity from within its worker, as the server would: interrupt its thread.

    It does not cancel a task; the code that awaits it does. A process only sees `is_cancelled()`.
    """
    context.cancelled_event.set()
    raiser = getattr(context.shield_thread_cancel_exception, "__self__", None)
    if raiser is not None:
        raiser.raise_in_thread(CancelledError)


def this_context() -> Any:
    """The running activity's context, for `cancel_here`. Raises `RuntimeError` outside of an activity."""
    return activity._Context.current()


def activity_name(function: Callable[..., Any]) -> str | None:
    """The name of an activity. None for other functions."""
    found = activity._Definition.from_callable(function)
    return None if found is None else found.name


# -- workflows --------------------------------------------------------------------------------------


def workflow_name(kind: type) -> str | None:
    """The name of a workflow. None for other classes."""
    found = workflow._Definition.from_class(kind)
    return None if found is None else found.name


def run_method(kind: type) -> Callable[..., Any] | None:
    """The run method of a workflow. None for other classes."""
    found = workflow._Definition.from_class(kind)
    return None if found is None else found.run_fn


def is_workflow(kind: type) -> bool:
    """Whether a class, or one that it extends, was decorated with `@workflow.defn`."""
    return hasattr(kind, "__temporal_workflow_definition")


def is_part_of_a_workflow(function: Any) -> bool:
    """Whether a function was decorated as a workflow's run method, signal, query or update."""
    marks = ("workflow_run", "signal_definition", "query_definition", "update_definition")
    return any(hasattr(function, f"__temporal_{mark}") for mark in marks)


# -- errors -----------------------------------------------------------------------------------------

GONE = "ExternalWorkflowExecutionNotFound"
"""Type of the error when the target of a signal has ended or never existed."""


def name_error(error: ApplicationError, name: str, *, retryable: bool) -> None:
    """Set the name of an error for Temporal, after an `__init__` that did not."""
    error._type = name
    error._non_retryable = not retryable
