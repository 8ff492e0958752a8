"""Workflow runs that hold leases or wait for them: their inboxes, and the check whether they have closed."""

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from dibs.stores.temporal.wire import is_unicode

type Owner = tuple[str, str]
"""A workflow ID and a run ID."""

_WORKFLOW = "wf:"
_RUN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST = 1_000
"""No workflow ID is longer."""


def inbox_of(workflow_id: str, run_id: str) -> str:
    """The inbox of a workflow's run, to which its notifications go."""
    return f"{_WORKFLOW}{workflow_id}:{run_id}"


def owner_of(inbox: str) -> Owner | None:
    """The run that an inbox belongs to. None for the inbox of a plain client.

    A signal to something that cannot be a workflow's run would fail the broker's task, again and again.
    """
    workflow_id, _, run_id = inbox.removeprefix(_WORKFLOW).rpartition(":")
    if not inbox.startswith(_WORKFLOW) or not workflow_id or not _RUN_ID.fullmatch(run_id):
        return None
    return (workflow_id, run_id) if len(inbox) < _LONGEST and is_unicode(inbox) else None


OWNER_CLOSED = "dibs_owner_closed"
"""The activity that asks the server."""

WAITS = "waits"
"""Marks a waiting run: for it, continue-as-new counts as closed."""

_PATIENCE = timedelta(seconds=20)
_ONCE = RetryPolicy(maximum_attempts=1)


class OwnerWatch:
    """Checks regularly which of some runs have closed, and calls `closed(runs, waiters)`.

    A run that continued as new may still hold what it held, but waits no longer.
    """

    EVERY = 10.0
    """Seconds between two checks."""

    def __init__(
        self, closed: Callable[[Sequence[Owner], Sequence[Owner]], None], due_at: float = 0.0
    ) -> None:
        self._closed = closed
        self._due_at = due_at
        """Time of the next check. 0 if there is nothing to check."""
        self._task: asyncio.Task[None] | None = None

    def dump(self) -> float:
        """The time of the next check, for the next run. It repeats a check that has no result yet."""
        return self._due_at if self._task is None else self._due_at - self.EVERY

    def work(self, runs: Sequence[Owner], waiter: Owner | None, now: float) -> None:
        """Start a check if one is due."""
        asked = [[*run] for run in runs] + ([[*waiter, WAITS]] if waiter else [])
        if not asked:
            self._due_at = 0.0
        elif not self._due_at:
            self._due_at = now + self.EVERY
        elif now >= self._due_at and self._task is None:
            self._due_at = now + self.EVERY
            self._task = asyncio.create_task(self._ask(asked))

    def due_at(self) -> float | None:
        """Time of the next check. None if there is none, or one is under way."""
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
