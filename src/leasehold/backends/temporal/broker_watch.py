"""A broker's look at runs that tell it nothing when they end."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from leasehold.backends.temporal.broker_desk import Owner

OWNER_CLOSED = "leasehold_owner_closed"

_PATIENCE = timedelta(seconds=20)
_ONCE = RetryPolicy(maximum_attempts=1)


class Watch:
    """Asks from time to time which of some runs have closed. `closed(runs)` is told of those."""

    EVERY = 10.0

    def __init__(self, closed: Callable[[Sequence[Owner]], None]) -> None:
        self._closed = closed
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def at_rest(self) -> bool:
        """No question is open."""
        return self._task is None

    def work(self, runs: Sequence[Owner], now: float) -> None:
        """Ask, if it is time to."""
        if not runs:
            self._next = 0.0
        elif not self._next:
            self._next = now + self.EVERY
        elif now >= self._next and self._task is None:
            self._next = now + self.EVERY
            self._task = asyncio.create_task(self._ask(runs))

    def due(self) -> float | None:
        """When it is time to."""
        return self._next if self._next and self._task is None else None

    async def _ask(self, runs: Sequence[Owner]) -> None:
        try:
            answers: list[bool] = await workflow.execute_activity(
                OWNER_CLOSED,
                [list(run) for run in runs],
                schedule_to_close_timeout=_PATIENCE,
                retry_policy=_ONCE,
                result_type=list[bool],
                summary="have the runs closed that hold something?",
            )
        except FailureError as error:
            workflow.logger.warning("It can't be told who has closed: %s", error)
            answers = []
        self._task = None
        self._closed([run for run, over in zip(runs, answers, strict=False) if over])
