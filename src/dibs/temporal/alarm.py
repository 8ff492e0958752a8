"""A timer for workflow code that is set anew as seldom as possible."""

import asyncio

from temporalio import workflow

SOONEST = 0.02
"""Shortest timer in seconds, so that work due together shares a workflow task."""

LATEST = 86_400.0
"""Longest timer in seconds, so that no ttl is too long for one."""


class Alarm:
    """Rings at a time, or when it is told to, and so wakes the one task that waits for it.

    To set a timer anew adds two events to the history. So a timer that is due earlier is kept, and a wait
    can end early. A wait that ends otherwise leaves its timer to the next one, until `close`.
    """

    def __init__(self) -> None:
        self.rung: bool = False
        """Set by each ring. Whoever waits otherwise than by `wait` clears it."""
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._due = 0.0

    @property
    def is_set(self) -> bool:
        """Whether it will ring by itself."""
        return self._timer is not None

    def ring(self) -> None:
        """Something has changed: look again."""
        self.rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def set(self, at: float, summary: str) -> None:
        """Ring at that time or before. `summary` is shown in Temporal's UI."""
        if self._timer is not None and self._due <= at:
            return
        self.close()
        pause = min(max(at - workflow.time(), SOONEST), LATEST)
        self._due = at
        self._timer = asyncio.create_task(self._sleep(pause, summary))

    async def wait(self, until: float, summary: str) -> None:
        """Wait until it rings, at that time at the latest."""
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        self.set(until, summary)
        await waiting

    def close(self) -> None:
        """Do not ring by itself any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _sleep(self, pause: float, summary: str) -> None:
        await workflow.sleep(pause, summary=summary)
        self._timer = None
        self.ring()
