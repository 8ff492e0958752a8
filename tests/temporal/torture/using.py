"""The work that a holder does under its permit: an activity that says what it sees, and writes."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

from temporalio import activity

from dibs.testing.torture.resources import ProtectedFiles as Pairs
from tests.temporal.torture.diary import Claim, Diary, boot_time

USE = "TortureUse"


@dataclass
class Use:
    """What the work is done under. Times are the server's, in seconds since 1970."""

    lease: str
    key: str
    token: int
    slots: list[int]
    capacity: int
    invoked: float
    """When the holder began to ask."""
    until: float
    """Up to when it believes that it holds."""
    seconds: float
    first: bool = True
    """The holder has not worked under this permit before."""


@dataclass
class Users:
    """The activities of one process."""

    folder: Path
    diary: Diary
    pairs: Pairs = field(init=False)

    def __post_init__(self) -> None:
        self.pairs = Pairs(self.folder, self.diary)

    @activity.defn(name=USE)
    async def use(self, use: Use) -> bool:
        """Work for a while and write, in time or not: the fenced file has to tell."""
        claim = Claim(
            use.lease, use.key.encode(), use.token, tuple(use.slots), boot_time(use.until)
        )
        self._begin(use, claim)
        end = self.diary.now() + use.seconds
        while (left := end - self.diary.now()) > 0:
            self.pairs.write(claim)
            await asyncio.sleep(min(left, random.uniform(0.01, 0.4)))
        in_time = claim.remaining > 0
        self.pairs.write(claim)
        self.diary.releasing(claim)  # or nobody relies on it until the next work under it
        return in_time

    def _begin(self, use: Use, claim: Claim) -> None:
        if use.first:
            invoked = boot_time(use.invoked)
            units = max(1, len(use.slots))
            self.diary.granted(claim, invoked, units=units, capacity=use.capacity)
        else:
            self.diary.renewed(claim)
