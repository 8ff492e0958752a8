"""What became of a task so far, as others may see it."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from dibs.tasks.clock import Timekeeper
from dibs.tasks.schedule import SECOND, time_of

type Outcome = Literal["done", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatus:
    """A task in this process; times are in UTC."""

    name: str
    schedule: str
    next_run: datetime | None
    """When it is due next; None while the scheduler is stopped, or it has no schedule."""
    running: bool
    """It runs at this moment, in this process; of an election: its candidate leads."""
    last_tick: datetime | None
    """Which tick was run here last."""
    last_start: datetime | None
    last_end: datetime | None
    last_outcome: Outcome | None
    """`lost`: the lease that it ran by, or the leader's term, ended before it did."""
    last_error: str | None
    """Why it failed or was lost; None after it was done."""
    won: int
    """So many ticks were run here,"""
    elsewhere: int
    """tried here and won by another process,"""
    skipped: int
    """won here while the run before still went on,"""
    missed: int
    """and not tried in time: nobody was here, the loop was blocked, or the store was away."""
    failed: int
    """So many runs raised an error."""
    trouble: str | None
    """Why it can't be tried at this moment; None while all is well."""


class Tally:
    """Counts what becomes of one task."""

    def __init__(self) -> None:
        self.won = self.elsewhere = self.skipped = self.missed = self.failed = 0
        self.next_run: int | None = None
        self.trouble: str | None = None
        self._running = 0
        self._tick: int | None = None
        self._start: int | None = None
        self._end: int | None = None
        self._outcome: Outcome | None = None
        self._error: str | None = None

    @property
    def running(self) -> bool:
        """It runs at this moment."""
        return self._running > 0

    @property
    def ended_badly(self) -> bool:
        """Its last run failed."""
        return self._outcome == "failed"

    def begin(self, now: int, tick: int | None = None) -> None:
        """A run has begun."""
        self._running += 1
        self._start, self._tick = now, tick
        if tick is not None:
            self.won += 1

    def end(self, now: int, outcome: Outcome, error: BaseException | None) -> None:
        """A run has ended."""
        self._running -= 1
        self._end, self._outcome = now, outcome
        self._error = None if error is None else f"{type(error).__name__}: {error}"
        if outcome == "failed":
            self.failed += 1

    def status(self, name: str, schedule: str, *, running: bool, trouble: str | None) -> TaskStatus:
        """What others may see."""
        return TaskStatus(
            name=name,
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
