"""Brings the loss of a permit to the body of a block in workflow code, by the rules of `asyncio.timeout`."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception


class Guard:
    """Cancels the task that entered, once; what it then ends with is told apart on leaving.

    Temporal takes a cancellation back while it waits for an activity or a child, and has it end with an
    error of its own; so the task's count says less here than in plain asyncio.
    """

    __slots__ = ("_at_entry", "_fired", "_task", "_workflow_was_cancelled")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._at_entry = 0
        self._fired = False
        self._workflow_was_cancelled = False

    def enter(self) -> None:
        """The task that runs now is the one to cancel."""
        task = asyncio.current_task()
        self._at_entry = task.cancelling() if task is not None else 0
        self._task = task
        self._workflow_was_cancelled = is_cancelled()

    def fire(self) -> None:
        """Cancel the body; only the first time counts."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel("the permit was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Whether it was our cancellation, or silence, that the body ended with.

        Raises `CancelledError` if somebody else's cancellation came together with ours and unnoticed.
        """
        task, self._task = self._task, None
        if task is None or not self._fired:
            return error is None
        caught = False
        if task.cancelling() > self._at_entry:
            try:
                await asyncio.sleep(0)  # one that the body was not there to receive any more
            except asyncio.CancelledError:
                caught = True
            task.uncancel()
        others = task.cancelling() > self._at_entry or self._workflow_is_cancelled_since()
        if others and caught and error is None:
            raise asyncio.CancelledError
        return error is None or (is_cancelled_exception(error) and not others)

    def _workflow_is_cancelled_since(self) -> bool:
        return is_cancelled() and not self._workflow_was_cancelled


def is_cancelled() -> bool:
    """Whether somebody has asked for this workflow's cancellation."""
    return workflow.cancellation_reason() is not None
