"""What was declared: a scheduled task, a lasting one, or a leader."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

from dibs import LeaderElection, TaskLock
from dibs.tasks.cron import Cron
from dibs.tasks.functions import Function
from dibs.tasks.moments import written
from dibs.tasks.options import Terms
from dibs.tasks.schedule import Every


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A task that runs whenever it is due."""

    name: str
    function: Function
    schedule: Every | Cron
    terms: Terms

    def placed(self, zone: tzinfo) -> "Scheduled":
        """The same, with cron's times in that zone unless it names one."""
        if isinstance(self.schedule, Cron):
            return replace(self, schedule=self.schedule.placed(zone))
        return self

    def tick_name(self, tick: int) -> str:
        """The name of the lock that who wins a tick takes."""
        return f"{self.name}@{written(tick)}"


@dataclass(frozen=True, slots=True)
class Lasting:
    """A coroutine function that goes on from the start to the stop."""

    name: str
    function: Callable[[], Any]
    schedule: str = "from start to stop"

    def placed(self, zone: tzinfo) -> "Lasting":
        """The same: it knows no time."""
        return self


@dataclass(frozen=True, slots=True)
class Led:
    """A candidate for a leader election."""

    name: str
    election: LeaderElection
    schedule: str = "leader election"

    def placed(self, zone: tzinfo) -> "Led":
        """The same: it knows no time."""
        return self


type Definition = Scheduled | Lasting | Led


def check_name(name: object) -> str:
    """A task's name. Raises `InvalidName` for one that makes no lock's name, with room for a tick."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}: give a text")
    TaskLock(f"{name}@{written(0)}" + "." * 7, 1, 1)
    if not name:
        raise ValueError("name is empty: give a text, or leave it out")
    return name
