"""A broker's look at runs that tell it nothing when they end."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from dibs.stores.temporal.protocol.owners import Owner

OWNER_CLOSED = "dibs_owner_closed"

WAITS = "waits"
"""Said of a run that is asked about because it waits."""

_PATIENCE = timedelta(seconds=20)
_ONCE = RetryPolicy(maximum_attempts=1)


class Watch:
    """Asks from time to time which of some runs have closed. `closed(runs, waiters)` is told of those.

    A run that continued as new holds what it held, perhaps, but waits no longer.
    """

    EVERY = 10.0

    def __init__(
        self, closed: Callable[[Sequence[Owner], Sequence[Owner]], None], state: float = 0.0
    ) -> None:
        self._closed = closed
        self._next = state
        """When to ask; 0 while there is nothing to be asked."""
        self._task: asyncio.Task[None] | None = None

    def dump(self) -> float:
        """For the next run, or a broker whose runs are short would never come to ask.

        What was asked and has no answer yet is asked again there.
        """
        return self._next if self._task is None else self._next - self.EVERY

    @property
    def at_rest(self) -> bool:
        """No question is open."""
        return self._task is None

    def work(self, runs: Sequence[Owner], waiter: Owner | None, now: float) -> None:
        """Ask, if it is time to."""
        asked = [[*run] for run in runs] + ([[*waiter, WAITS]] if waiter else [])
        if not asked:
            self._next = 0.0
        elif not self._next:
            self._next = now + self.EVERY
        elif now >= self._next and self._task is None:
            self._next = now + self.EVERY
            self._task = asyncio.create_task(self._ask(asked))

    def due(self) -> float | None:
        """When it is time to."""
        return self._next if self._next and self._task is None else None

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
            workflow.logger.warning("It can't be told who has closed: %s", error)
            answers = []
        self._task = None
        over = [each for each, closed in zip(asked, answers, strict=False) if closed]
        self._closed(
            [(each[0], each[1]) for each in over if WAITS not in each[2:]],
            [(each[0], each[1]) for each in over if WAITS in each[2:]],
        )
