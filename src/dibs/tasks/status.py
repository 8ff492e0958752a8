"""Status of a task in this process: counts, the last run, and reports."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from dibs.tasks.schedule import SECOND, time_of

log: logging.Logger = logging.getLogger("dibs.tasks")

WARN_EVERY = 30 * SECOND
"""Microseconds between two warnings about trouble that goes on."""

type Outcome = Literal["done", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatus:
    """A task in this process. Times are in UTC."""

    name: str
    schedule: str
    next_run: datetime | None
    """When it is due next; None while the scheduler is stopped, or without a schedule."""
    running: bool
    """It runs at this moment in this process. For an election: its candidate leads."""
    last_tick: datetime | None
    """The tick that was run here last."""
    last_start: datetime | None
    last_end: datetime | None
    last_outcome: Outcome | None
    """`lost`: the lease that it ran by, or the leader's term, ended before it did."""
    last_error: str | None
    """Why it failed or was lost; None after it was done."""
    won: int
    """Ticks that were run here."""
    elsewhere: int
    """Ticks that were tried here, and run by another process."""
    skipped: int
    """Ticks that were won here while the run before was still under way."""
    missed: int
    """Ticks that were not tried in time: this process was stopped or blocked, or the store was away."""
    failed: int
    """Runs that raised an error."""
    trouble: str | None
    """Why it can't be tried at this moment; None while all is well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFailure:
    """A run that failed or was lost: the argument of `on_error`."""

    task: str
    """The task's name."""
    tick: datetime | None
    """Which tick it was, in UTC; None for a task without a schedule."""
    outcome: Outcome
    """`failed`, or `lost`: the lease that it ran by, or the leader's term, ended before it did."""
    error: BaseException


type OnError = Callable[[TaskFailure], Any]


class RunStats:
    """Counts what becomes of one task, and reports its trouble and its failures."""

    def __init__(self, name: str, on_error: OnError | None) -> None:
        self.won: int
        self.won = self.elsewhere = self.skipped = self.missed = self.failed = 0
        self.next_run: int | None = None
        self.trouble: str | None = None
        self._name = name
        self._on_error = on_error
        self._warned_at: int | None = None
        self._running = 0
        self._tick: int | None = None
        self._start: int | None = None
        self._end: int | None = None
        self._outcome: Outcome | None = None
        self._error: str | None = None

    @property
    def running(self) -> bool:
        """Whether it runs at this moment."""
        return self._running > 0

    @property
    def ended_badly(self) -> bool:
        """Whether its last run failed."""
        return self._outcome == "failed"

    def begin(self, now: int, tick: int | None = None) -> None:
        """Count the start of a run."""
        self._running += 1
        self._start, self._tick = now, tick
        if tick is not None:
            self.won += 1

    def end(self, now: int, outcome: Outcome, error: BaseException | None) -> None:
        """Count the end of a run."""
        self._running -= 1
        self._end, self._outcome = now, outcome
        self._error = None if error is None else _text(error)
        if outcome == "failed":
            self.failed += 1

    def cannot_try(self, error: Exception, now: int) -> None:
        """Note that it could not be tried and will be again. Warns now, and every 30 s while that lasts."""
        self.trouble = _text(error)
        if self._warned_at is None or not 0 <= now - self._warned_at < WARN_EVERY:
            self._warned_at = now
            log.warning("task %s can't be tried, and is tried again: %s", self._name, error)

    def can_try(self) -> None:
        """Note that the trouble is over."""
        self.trouble = self._warned_at = None

    async def report(self, outcome: Outcome, error: BaseException, tick: int | None = None) -> None:
        """Log a run that failed or was lost, and call `on_error`. Nothing else stops for that."""
        if outcome == "lost":
            log.warning("task %s was stopped: %s", self._name, error)
        else:
            log.error("task %s failed", self._name, exc_info=error)
        if self._on_error is None:
            return
        failure = TaskFailure(task=self._name, tick=_time(tick), outcome=outcome, error=error)
        try:
            answer = self._on_error(failure)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("on_error failed for task %s", self._name)

    def status(self, schedule: str, *, running: bool, trouble: str | None) -> TaskStatus:
        """The public view of it."""
        return TaskStatus(
            name=self._name,
            schedule=schedule,
            next_run=_time(self.next_run),
            running=running,
            last_tick=_time(self._tick),
            last_start=_time(self._start),
            last_end=_time(self._end),
            last_outcome=self._outcome,
            last_error=self._error,
            won=self.won,
            elsewhere=self.elsewhere,
            skipped=self.skipped,
            missed=self.missed,
            failed=self.failed,
            trouble=trouble,
        )


def _time(moment: int | None) -> datetime | None:
    return None if moment is None else time_of(moment)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
