"""When a task is due. A *tick* is a moment at which it is, the same for all processes."""

from typing import Protocol

from dibs.config import Duration, seconds
from dibs.tasks.moments import SECOND

SHORTEST = 0.1
"""Ticks are no closer than that, in seconds."""


class Schedule(Protocol):
    """An endless row of ticks."""

    @property
    def period(self) -> float | None:
        """The seconds between any two; None where that varies."""

    def after(self, moment: int) -> int:
        """The first tick later than a moment."""


class Every:
    """Ticks at the multiples of a period since 1970 (UTC), each `offset` later."""

    def __init__(self, period: Duration, offset: Duration = 0) -> None:
        if callable(period):
            raise TypeError('write @tasks.every("60s"), with the time between two runs')
        self.period = seconds(period, "every")
        late = seconds(offset, "offset")
        if not SHORTEST <= self.period < float("inf"):
            raise ValueError(f"every is {self.period:g} s: give at least {SHORTEST:g} s")
        if late >= self.period:
            raise ValueError(
                f"offset is {late:g} s: it must be less than the period, {self.period:g} s"
            )
        self._period = round(self.period * SECOND)
        self._offset = round(late * SECOND)

    def after(self, moment: int) -> int:
        """The first tick later than a moment."""
        since = moment - self._offset
        return (since // self._period + 1) * self._period + self._offset

    def __str__(self) -> str:
        late = f", {self._offset / SECOND:g} s late" if self._offset else ""
        return f"every {self.period:g} s{late}"


def ticks_between(schedule: Schedule, after: int, until: int) -> list[int]:
    """The ticks later than `after`, up to and with `until`."""
    ticks: list[int] = []
    tick = schedule.after(after)
    while tick <= until:
        ticks.append(tick)
        tick = schedule.after(tick)
    return ticks
