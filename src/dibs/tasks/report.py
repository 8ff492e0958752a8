"""Saying what goes wrong with one task: to the log, to its status, and to who wants to hear it."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dibs.tasks.clock import Timekeeper
from dibs.tasks.moments import SECOND, time_of
from dibs.tasks.status import Outcome, Tally

log = logging.getLogger("dibs.tasks")

EVERY = 30 * SECOND
"""Trouble that goes on is told again after so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFailure:
    """A run that ended badly; what `on_error` is called with."""

    task: str
    """The task's name."""
    tick: datetime | None
    """Which tick it was, in UTC; None for a task without a schedule."""
    outcome: Outcome
    """`failed`, or `lost`: the lease that it ran by, or the leader's term, ended before it did."""
    error: BaseException


type OnError = Callable[[TaskFailure], Any]


class Reporter:
    """The voice of one task."""

    def __init__(self, name: str, tally: Tally, time: Timekeeper, on_error: OnError | None) -> None:
        self._name = name
        self._tally = tally
        self._time = time
        self._on_error = on_error
        self._told_at: int | None = None

    def trouble(self, error: Exception) -> None:
        """It could not be tried, and will be again: said once, and then every so often."""
        self._tally.trouble = f"{type(error).__name__}: {error}"
        now = self._time.now()
        if self._told_at is None or not 0 <= now - self._told_at < EVERY:
            self._told_at = now
            log.warning("task %s can't be tried, and is tried again: %s", self._name, error)

    def well(self) -> None:
        """It works."""
        self._tally.trouble = self._told_at = None

    async def ended(self, outcome: Outcome, error: BaseException, tick: int | None = None) -> None:
        """A run ended badly; nothing else stops for that."""
        if outcome == "lost":
            log.warning("task %s was stopped: %s", self._name, error)
        else:
            log.error("task %s failed", self._name, exc_info=error)
        if self._on_error is None:
            return
        when = None if tick is None else time_of(tick)
        failure = TaskFailure(task=self._name, tick=when, outcome=outcome, error=error)
        try:
            answer = self._on_error(failure)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("on_error failed for task %s", self._name)
