"""Waiting in workflow code for news, with one timer that is moved as rarely as can be."""

import asyncio

from temporalio import workflow


class Bell:
    """Wakes the one task that waits for it, when it is rung or when it is time.

    To move a timer is two events in the history each time. So one that rings too early is left as it is,
    and a wait that ends otherwise leaves it for the next, until `close`.
    """

    def __init__(self) -> None:
        self._rung: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._due = 0.0

    def ring(self) -> None:
        """Something has changed: look again."""
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    async def wait(self, until: float, summary: str) -> None:
        """Until it rings, until then, or until a little before; `summary` is seen in Temporal's UI.

        Unlike `wait_condition` it never ends with a cancellation that was meant for another task.
        """
        self._rung = rung = asyncio.get_running_loop().create_future()
        timer = self._set(until, summary)
        await workflow.wait([timer, rung], return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_set(self) -> bool:
        """It will ring by itself."""
        return self._timer is not None and not self._timer.done()

    def close(self) -> None:
        """Ring no more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, until: float, summary: str) -> asyncio.Task[None]:
        if self._timer is None or self._timer.done() or until < self._due:
            self.close()
            left = max(until - workflow.time(), 0.001)
            self._timer = asyncio.create_task(workflow.sleep(left, summary=summary))
            self._due = until
        return self._timer
