"""A coroutine that runs in the background of an event loop."""

import asyncio


class TaskJob:
    """A task that is held for as long as its job is."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; tell whether it has. To be cancelled meanwhile leaves it alone."""
        done, _ = await asyncio.wait((self._task,), timeout=timeout)
        return bool(done)

    def cancel(self) -> None:
        self._task.cancel()
