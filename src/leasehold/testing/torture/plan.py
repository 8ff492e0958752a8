"""How much is to be tried, and what follows from it."""

import secrets

from leasehold.config import Duration, safe_ttl, seconds
from leasehold.testing.torture.board import MOST

SLACK = 5.0
"""Seconds that a loaded machine and a busy store may take on top of what is promised."""
ROUND = 45.0
"""Seconds of one round, about: its history has to fit into memory."""
SEMAPHORE = 2
"""The capacity of the one semaphore among the locks."""


class TorturePlan:
    """How long, with how many processes, and which ttl.

    Raises `ValueError` for what can't be done, `UnsafeTiming` for a ttl that is all margin. The same
    `seed` draws the same faults, though at other moments of what the processes do.
    """

    def __init__(
        self,
        *,
        seconds: Duration = 60.0,
        processes: int = 6,
        ttl: Duration = 1.0,
        seed: int | None = None,
    ) -> None:
        self.seconds = _some_seconds(seconds)
        self.processes = processes
        self.ttl = safe_ttl(ttl)
        self.seed = secrets.randbelow(1_000_000) if seed is None else seed
        if not 2 <= processes <= MOST:
            raise ValueError(f"processes is {processes}: it takes 2 to {MOST} to contend")

    @property
    def locks(self) -> int:
        """So few that processes meet, so many that one which hangs doesn't stop all."""
        return self.processes

    @property
    def names(self) -> dict[str, int]:
        """What is contended for, and its capacity."""
        locks = {f"lock-{number}": 1 for number in range(1, self.locks + 1)}
        return locks | {"semaphore": SEMAPHORE}

    @property
    def bound(self) -> float:
        """Seconds within which a free lock must reach a waiter once nobody is disturbed any more.

        A dead holder's ttl, a dead waiter's claim window, and slack.
        """
        return 2 * self.ttl + SLACK

    @property
    def rounds(self) -> int:
        return max(1, round(self.seconds / ROUND))

    @property
    def calm(self) -> float:
        """Seconds at the end of a round without faults, to see everybody served; 0 for want of time."""
        needed = self.bound + 2.0
        return needed if self.seconds / self.rounds >= 2 * needed else 0.0

    @property
    def storm(self) -> float:
        """Seconds of a round in which faults strike."""
        return self.seconds / self.rounds - self.calm


def _some_seconds(value: Duration) -> float:
    result = seconds(value, "seconds")
    if not 1 <= result <= 7 * 86400:
        raise ValueError(f"seconds is {value!r}: give a second to a week")
    return result
