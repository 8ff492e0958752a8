"""Size of a torture: time, processes, resources, and the limits that follow."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from dibs.config import Duration, safe_ttl, seconds

type SideName = Literal["threads", "asyncio"]
SIDES: tuple[SideName, ...] = ("threads", "asyncio")

MOST = 64
"""The most processes."""

CAPACITY = 3
"""Units of each semaphore."""

PRIMITIVES: Final = ("lock", "semaphore", "rwlock", "tasklock", "leader", "allof")
"""All that can be tried; see `turns`."""


def names_of(resources: Mapping[str, int]) -> list[str]:
    """Names for a number of resources of each primitive: `lock-1`, `lock-2`, `semaphore-1`."""
    return [f"{what}-{number}" for what, many in resources.items() for number in range(1, many + 1)]


def primitive_of(name: str) -> str:
    """The primitive that a name, or a key with it, belongs to; empty for what has no such name."""
    own = name.rpartition("/")[2].partition("-")[0]
    return own if own in PRIMITIVES else ""


SLACK = 5.0
"""Seconds that a loaded machine and a busy store may take on top of what is promised."""
ROUND = 45.0
"""Seconds of one round, about: its history has to fit into memory."""
LINGER = 35.0
"""Seconds in which a store drops the waiters whose process died."""
CHECKING = 10.0
"""Seconds, about, that the check of the last round's histories takes on a busy machine."""
HOUR = 3600.0
MOST_TASKS = 64
MOST_RESOURCES = 256
"""Each worker has some files open for each."""
MOST_IN_ALL = 2 * MOST_RESOURCES
"""The most tasks in all processes."""


class TorturePlan:
    """How long, with how many processes, and which ttl.

    With `cycles` it ends once so many are done, or after `seconds` (then an hour if not given). Each of the
    `processes` has so many `tasks` (or threads) that take turns on resources of all `primitives`: on so many
    `locks`, and on as many of each other primitive as lets there be one resource for each task. The
    processes use these `sides` of the API by turns: `asyncio`, `threads`.

    Raises `ValueError` for what can't be done, `UnsafeTiming` for a ttl that is all margin. The same
    `seed` draws the same faults, though at other moments of what the processes do.
    """

    def __init__(
        self,
        *,
        seconds: Duration | None = None,
        cycles: int | None = None,
        processes: int = 6,
        tasks: int = 4,
        locks: int | None = None,
        ttl: Duration = 1.0,
        seed: int | None = None,
        primitives: Sequence[str] = PRIMITIVES,
        sides: Sequence[SideName] = SIDES,
    ) -> None:
        self.seconds: float = (
            _some_seconds(seconds) if seconds is not None else HOUR if cycles else 60.0
        )
        self.cycles: int | None = cycles
        self.processes: int = processes
        self.tasks: int = tasks
        self.sides: tuple[SideName, ...] = tuple(sides)
        self.ttl: float = safe_ttl(ttl)
        self.seed: int = secrets.randbelow(1_000_000) if seed is None else seed
        if not 2 <= processes <= MOST:
            raise ValueError(f"processes is {processes}: it takes 2 to {MOST} to contend")
        if not 1 <= tasks <= MOST_TASKS:
            raise ValueError(f"tasks is {tasks}: give each process 1 to {MOST_TASKS}")
        if cycles is not None and cycles < 1:
            raise ValueError(f"cycles is {cycles}: give at least 1")
        if not sides or set(sides) - set(SIDES):
            raise ValueError(f"sides is {sides!r}: give {' or '.join(SIDES)}, or both")
        self.resources: dict[str, int] = _resources(primitives, processes * tasks, locks)

    @property
    def names(self) -> list[str]:
        """Names of all resources."""
        return names_of(self.resources)

    def side(self, number: int) -> SideName:
        """Side of a process."""
        return self.sides[number % len(self.sides)]

    @property
    def threads(self) -> int:
        """How many processes use threads."""
        return sum(self.side(number) == "threads" for number in range(self.processes))

    @property
    def bound(self) -> float:
        """Seconds within which a free lock must reach a waiter once nobody is disturbed any more.

        A dead holder's ttl, two claim timeouts for dead and paused waiters, and slack.
        """
        return 2 * self.ttl + SLACK

    @property
    def afterwards(self) -> float:
        """Seconds that the last check and the cleanup take at most, about, after `seconds`."""
        return CHECKING + LINGER

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


def _resources(primitives: Sequence[str], tasks: int, locks: int | None) -> dict[str, int]:
    """How many there are of each primitive: so few that all contend, so many that queues don't consist
    of the dead.
    """
    unknown = [each for each in primitives if each not in PRIMITIVES]
    if unknown or not primitives:
        flaw = f"there is no {unknown[0]!r}" if unknown else "none are given"
        raise ValueError(f"primitives: {flaw}; give some of {', '.join(PRIMITIVES)}")
    if tasks > MOST_IN_ALL:
        raise ValueError(f"these are {tasks} tasks: give {MOST_IN_ALL} in all at most")
    chosen = [each for each in PRIMITIVES if each in primitives]
    resources = dict.fromkeys(chosen, min(-(-tasks // len(chosen)), MOST_RESOURCES // len(chosen)))
    if locks is not None:
        _check_locks(locks, tasks, sum(resources.values()) - resources.get("lock", 0), chosen)
        resources["lock"] = locks
    return resources


def _check_locks(locks: int, tasks: int, others: int, primitives: Sequence[str]) -> None:
    if "lock" not in primitives:
        raise ValueError(f"locks is {locks}, and lock is not among the primitives")
    fewest, most = max(1, tasks // 2 - others), MOST_RESOURCES - others
    if not fewest <= locks <= most:
        raise ValueError(f"locks is {locks}: {tasks} tasks need {fewest} to {most}")


def _some_seconds(value: Duration) -> float:
    result = seconds(value, "seconds")
    if not 1 <= result <= 7 * 86400:
        raise ValueError(f"seconds is {value!r}: give a second to a week")
    return result
