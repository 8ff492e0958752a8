"""The `async with` of workflow code: what is acquired on entering is given up on leaving."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

from dibs.temporal.permits.permit import Permit


class Acquiring:
    """What `acquire()` returns: enter it with `async with`, or await it and release the permit yourself.

    In a block the body is cancelled as soon as the permit is lost, and `LeaseLost` is raised on leaving.
    The body's own exception is never hidden by that, and somebody else's cancellation never swallowed.
    """

    def __init__(self, obtain: Callable[[], Awaitable[Permit]]) -> None:
        self._obtain = obtain
        self._entered: list[tuple[Permit, Guard]] = []

    def __await__(self) -> Generator[Any, Any, Permit]:
        return self._obtain().__await__()

    async def __aenter__(self) -> Permit:
        permit = await self._obtain()
        guard = Guard()
        guard.enter()
        permit._on_lost = guard.fire
        if permit.lost:
            guard.fire()
        self._entered.append((permit, guard))
        return permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, GeneratorExit):  # the run is put away, and goes on elsewhere
            return
        permit, guard = self._entered.pop()
        permit._on_lost = None
        loss = permit._loss() if permit.lost else None
        silent, cancelled = False, None
        try:
            silent = await guard.leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        try:
            await permit._leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        if cancelled is not None and (error is None or is_cancelled_exception(error)):
            raise cancelled
        if loss is None:
            return
        if silent:
            raise loss from (None if isinstance(error, asyncio.CancelledError) else error)
        if error is not None:
            error.add_note(str(loss))


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
