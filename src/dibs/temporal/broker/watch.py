"""The broker's check for workflow runs that have closed without a word."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from dibs.stores.temporal.protocol.owners import Owner

OWNER_CLOSED = "dibs_owner_closed"
"""The activity that asks the server."""

WAITS = "waits"
"""Says of a run that it is asked about because it waits."""

_PATIENCE = timedelta(seconds=20)
_ONCE = RetryPolicy(maximum_attempts=1)


class OwnerWatch:
    """Asks from time to time which of some runs have closed, and calls `closed(runs, waiters)`.

    A run that continued as new may still hold what it held, but waits no longer.
    """

    EVERY = 10.0
    """Seconds between two questions."""

    def __init__(
        self, closed: Callable[[Sequence[Owner], Sequence[Owner]], None], due_at: float = 0.0
    ) -> None:
        self._closed = closed
        self._due_at = due_at
        """When to ask; 0 while there is nothing to ask."""
        self._task: asyncio.Task[None] | None = None

    def dump(self) -> float:
        """When the next run has to ask. A question that has no answer yet is asked again there."""
        return self._due_at if self._task is None else self._due_at - self.EVERY

    def work(self, runs: Sequence[Owner], waiter: Owner | None, now: float) -> None:
        """Ask, if it is time to."""
        asked = [[*run] for run in runs] + ([[*waiter, WAITS]] if waiter else [])
        if not asked:
            self._due_at = 0.0
        elif not self._due_at:
            self._due_at = now + self.EVERY
        elif now >= self._due_at and self._task is None:
            self._due_at = now + self.EVERY
            self._task = asyncio.create_task(self._ask(asked))

    def due_at(self) -> float | None:
        """When it is time to ask."""
        return self._due_at if self._due_at and self._task is None else None

    async def _ask(self, asked: Sequence[Sequence[str]]) -> None:
        try:
            answers: list[bool] = await workflow.execute_activity(
                OWNER_CLOSED,
                asked,
                schedule_to_close_timeout=_PATIENCE,
                retry_policy=_ONCE,
                result_type=list[bool],
                summary="have the runs closed that hold something, or wait first?",
            )
        except FailureError as error:
            workflow.logger.warning("Which runs have closed is unknown: %s", error)
            answers = []
        self._task = None
        over = [each for each, closed in zip(asked, answers, strict=False) if closed]
        self._closed(
            [(each[0], each[1]) for each in over if WAITS not in each[2:]],
            [(each[0], each[1]) for each in over if WAITS in each[2:]],
        )
