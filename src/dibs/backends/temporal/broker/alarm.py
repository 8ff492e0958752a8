"""The one timer that a broker keeps."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

_SOONEST = 0.02
"""What is due at once may wait so long for what is due with it."""
_LATEST = 86_400.0
"""It looks once a day, so that no ttl is too long for a timer."""


class Alarm:
    """Rings at the latest when it was last asked to. One that rings too early is set again then.

    Nearly every call moves the next due time on, and to move a timer is two events each time.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def set(self, at: float, why: str) -> None:
        """Ring at that time or before. `why` is seen in Temporal's UI."""
        if self._at is not None and self._at <= at:
            return
        if self._task is not None:
            self._task.cancel()
        self._at = at
        wait = timedelta(seconds=min(max(at - workflow.time(), _SOONEST), _LATEST))
        self._task = asyncio.create_task(self._sleep(wait, why))

    async def _sleep(self, wait: timedelta, why: str) -> None:
        await workflow.sleep(wait, summary=why)
        self._at = self._task = None
        self._ring()
