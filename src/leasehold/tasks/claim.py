"""Winning a tick: by a lock that bears its name, and stays closed for as long as anybody may try it."""

from secrets import token_hex
from typing import Any

from leasehold import AcquireTimeout, Client, TaskLock
from leasehold.tasks.definition import Scheduled


class Uncertain(Exception):
    """What is in the way may be a try of our own, whose answer was lost and which is being given up."""


class Claimant:
    """One scheduler's hand on one store. Raises `MissingCapability` for one that won't do."""

    def __init__(self, client: Client, require: frozenset[str]) -> None:
        self.about: dict[str, Any] = {"client": client, "require": require}
        self.label = f"tasks-{token_hex(3)}"
        """In the owner's name, so that it knows its own locks by it."""
        TaskLock("any", 1, 1, **self.about)  # a store that won't do is refused here, and not later

    async def claim(self, task: Scheduled, tick: int, *, again: bool) -> bool:
        """Win a tick for good; False if somebody else has. One round trip where that is so.

        `again`: a try before this one ended in an error, so that it may have won all the same.
        """
        keep = task.terms.keep
        lock = TaskLock(task.tick_name(tick), keep, keep, label=self.label, **self.about)
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
            holder.state != "kept" and holder.owner.endswith(f"/{self.label}")
            for holder in busy.holders
        ):
            raise Uncertain("a try whose answer was lost is being given up") from busy
