"""Winning a tick: by a lock that bears its name, and stays closed for as long as anybody may try it."""

from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from dibs import AcquireTimeout, Campaign, Client, TaskLock, TaskLockConfig
from dibs import sync as blocking
from dibs.tasks.clock import Timekeeper
from dibs.tasks.definition import Scheduled, is_async
from dibs.tasks.status import Reporter, Tally

type RunLock = TaskLock | blocking.TaskLock
"""Of the world that the task's function is of."""


class Uncertain(Exception):
    """What is in the way may be a try of our own, whose answer was lost and which is being given up."""


class Claimant:
    """One scheduler's hand on one store. Raises `MissingCapability` for one that won't do."""

    def __init__(self, client: Client, require: frozenset[str]) -> None:
        self.about: dict[str, Any] = {"client": client, "require": require}
        """What each of its locks is described with."""
        self.label = f"tasks-{token_hex(3)}"
        """In the owner's name, so that it knows its own locks by it."""
        TaskLock("any", 1, 1, **self.about)  # a store that won't do is refused here, and not later

    def run_lock(self, task: Scheduled) -> RunLock | None:
        """What whoever runs a tick of it holds meanwhile; None where it runs everywhere."""
        terms = task.terms
        if terms.everywhere:
            return None
        hold = TaskLockConfig(
            min_hold=terms.min_hold,
            max_hold=terms.max_hold,
            cancel=terms.cancel,
            label=self.label,
        )
        if is_async(task.function):
            return TaskLock.from_config(task.name, hold, **self.about)
        return blocking.TaskLock.from_config(task.name, hold, **self.about)

    async def claim(self, task: Scheduled, tick: int, *, again: bool) -> bool:
        """Win a tick for good; False if somebody else has. One round trip where that is so.

        `again`: a try before this one ended in an error, so that it may have won all the same.
        """
        keep = task.terms.keep
        hold = TaskLockConfig(min_hold=keep, max_hold=keep, label=self.label)
        lock = TaskLock.from_config(task.tick_name(tick), hold, **self.about)
        try:
            async with lock.acquire(note="a tick that was claimed"):
                pass  # kept from here on, by nobody
        except AcquireTimeout as busy:
            self.refuse_own(busy, again)
            return False
        return True

    def refuse_own(self, busy: AcquireTimeout, again: bool) -> None:
        """Raises `Uncertain` if it is our own earlier try that is in the way."""
        if again and any(
            holder.state != "retained" and holder.owner.endswith(f"/{self.label}")
            for holder in busy.holders
        ):
            raise Uncertain("a try whose answer was lost is being given up") from busy


@dataclass(frozen=True, slots=True)
class Duty:
    """A task, and the means to do it."""

    task: Scheduled
    claimant: Claimant
    lock: RunLock | None
    """What is held while it runs; None where it runs everywhere."""
    campaign: Campaign | None
    """By which it leads, if only a leader runs it."""
    time: Timekeeper
    tally: Tally
    reporter: Reporter
