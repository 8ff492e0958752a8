"""How much is to be tried, and what follows from it."""

import secrets

from leasehold.config import Duration, safe_ttl, seconds
from leasehold.testing.torture.board import MOST

SLACK = 5.0
"""Seconds that a loaded machine and a busy store may take on top of what is promised."""
ROUND = 45.0
"""Seconds of one round, about: its history has to fit into memory."""
HOUR = 3600.0
SEMAPHORE = 2
"""The capacity of the semaphores among the locks."""
PER_SEMAPHORE = 6
"""So many locks for each semaphore."""
MOST_TASKS = 64
MOST_LOCKS = 256
"""Each worker has two files open for each."""


class TorturePlan:
    """How long, with how many processes, and which ttl.

    With `cycles` it ends once so many are done, or after `seconds` (then an hour if not given). Each of the
    `processes` has so many `tasks` (or threads) that take turns on so many `locks`; by default as many locks
    as there are tasks in all.

    Raises `ValueError` for what can't be done, `UnsafeTiming` for a ttl that is all margin. The same
    `seed` draws the same faults, though at other moments of what the processes do.
    """

    def __init__(
        self,
        *,
        seconds: Duration | None = None,
        cycles: int | None = None,
        processes: int = 6,
        tasks: int = 1,
        locks: int | None = None,
        ttl: Duration = 1.0,
        seed: int | None = None,
    ) -> None:
        self.seconds = _some_seconds(seconds) if seconds is not None else HOUR if cycles else 60.0
        self.cycles = cycles
        self.processes = processes
        self.tasks = tasks
        self.locks = processes * tasks if locks is None else locks
        self.ttl = safe_ttl(ttl)
        self.seed = secrets.randbelow(1_000_000) if seed is None else seed
        if not 2 <= processes <= MOST:
            raise ValueError(f"processes is {processes}: it takes 2 to {MOST} to contend")
        if not 1 <= tasks <= MOST_TASKS:
            raise ValueError(f"tasks is {tasks}: give each process 1 to {MOST_TASKS}")
        if cycles is not None and cycles < 1:
            raise ValueError(f"cycles is {cycles}: give at least 1")
        # so few that all contend, so many that queues don't consist of the dead
        fewest = max(1, processes * tasks // 2)
        if not fewest <= self.locks <= MOST_LOCKS:
            raise ValueError(
                f"locks is {self.locks}: {processes * tasks} tasks need {fewest} to {MOST_LOCKS}"
            )

    @property
    def semaphores(self) -> int:
        """One, or more where there are many locks."""
        return max(1, self.locks // PER_SEMAPHORE)

    @property
    def names(self) -> dict[str, int]:
        """What is contended for, and its capacity."""
        locks = {f"lock-{number}": 1 for number in range(1, self.locks + 1)}
        numbers = range(1, self.semaphores + 1)
        return locks | {f"semaphore-{number}": SEMAPHORE for number in numbers}

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
