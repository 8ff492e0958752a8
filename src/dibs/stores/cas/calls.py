"""The commands that wait for the next swap of a key, and who gets their replies."""

import asyncio
from collections.abc import Sequence
from typing import cast

from dibs.errors import DibsError
from dibs.model import Command, Release, Reply
from dibs.stores.cas.clock import Sightings
from dibs.stores.port import Done, error_of_batch, failed_reply


class KeyCall:
    """Commands of one batch for one key, and who gets their replies."""

    __slots__ = ("commands", "done", "key")

    def __init__(self, key: "KeyCalls", commands: Sequence[Command], done: Done) -> None:
        self.key: KeyCalls = key
        self.commands: Sequence[Command] = commands
        self.done: Done | None = done
        """None: it has ended, or its caller gave up."""

    def end(self, outcome: Sequence[Reply] | DibsError) -> None:
        """Pass the outcome on, once."""
        done, self.done = self.done, None
        if done is not None:
            done(outcome)

    def give_up(self) -> None:
        """The caller gave up. What is under way is cancelled when all its callers did."""
        if self.done is not None:
            self.done = None
            self.key.end_if_unwanted()


def is_release(call: KeyCall) -> bool:
    """Whether it releases a lease, for which others may wait."""
    return any(isinstance(command, Release) for command in call.commands)


class KeyBatch:
    """A batch for several keys: what came of each, until the last has ended."""

    def __init__(self, size: int, keys: int, done: Done) -> None:
        self._replies: list[Reply | None] = [None] * size
        self._left = keys
        self._done = done
        self._errors: list[DibsError] = []
        self._has_replies = False

    def end(self, numbers: Sequence[int], outcome: Sequence[Reply] | DibsError) -> None:
        """The commands of these numbers have ended."""
        if isinstance(outcome, DibsError):
            self._errors.append(outcome)
            outcome = [failed_reply(outcome)] * len(numbers)
        else:
            self._has_replies = True
        for number, reply in zip(numbers, outcome, strict=True):
            self._replies[number] = reply
        self._left -= 1
        if not self._left:
            error = None if self._has_replies else error_of_batch(self._errors)
            self._done(error or cast(list[Reply], self._replies))


class KeyCalls:
    """A key in this event loop: what waits, what is under way, and what was seen of its entries."""

    __slots__ = ("given_up", "hurry", "running", "sightings", "taken", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: list[KeyCall] = []
        """The next swap takes all of them along."""
        self.taken: list[KeyCall] = []
        """Those of the swap that is under way."""
        self.hurry: asyncio.Future[None] | None = None
        """Set to end the pause after conflicts early."""
        self.running: bool = False
        self.task: asyncio.Task[None] | None = None
        self.given_up: bool = False
        """All callers of what is under way gave up."""
        self.sightings: Sightings = Sightings()

    def take(self) -> list[Command]:
        """Take along all who wait, and return their commands."""
        more = [call for call in self.waiting if call.done is not None]
        self.waiting = []
        self.taken += more
        return [command for call in more for command in call.commands]

    async def back_off(self, seconds: float) -> bool:
        """Pause after conflicts, until a release comes: others wait for that. Returns whether it did."""
        if any(is_release(call) for call in self.waiting):
            return False
        self.hurry = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self.hurry,), timeout=seconds)
        finally:
            self.hurry = None
        return True

    def end_if_unwanted(self) -> None:
        """Cancel what is under way if all its callers gave up."""
        if self.task is not None and self.taken and all(each.done is None for each in self.taken):
            self.given_up = True
            self.task.cancel()
