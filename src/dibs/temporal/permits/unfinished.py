"""What the end of a block tells of the work that was begun in it."""

from temporalio import workflow

from dibs.temporal.failures import Misused


def may_run_on(error: BaseException | None) -> bool:
    """Whether a body that ended so may have left an activity running.

    Any error may come of a cancellation or a time-out: as an `ActivityError`, as Python's `TimeoutError`,
    in a task group's `ExceptionGroup`, or as what the body made of it.
    """
    return error is not None and not isinstance(error, (Misused, workflow.ContinueAsNewError))
