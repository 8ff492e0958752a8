"""What is done with each primitive, one file for each: both worlds take turns by the same text."""

from dibs.testing.torture.turns.leader import LeaderTurns
from dibs.testing.torture.turns.rwlock import RWLockTurns
from dibs.testing.torture.turns.semaphore import SemaphoreTurns
from dibs.testing.torture.turns.tasklock import TaskLockTurns
from dibs.testing.torture.turns.turns import AllOfTurns, LockTurns, Turns

TURNS: dict[str, type[Turns]] = {
    "lock": LockTurns,
    "semaphore": SemaphoreTurns,
    "rwlock": RWLockTurns,
    "tasklock": TaskLockTurns,
    "leader": LeaderTurns,
    "allof": AllOfTurns,
}
"""By primitive."""
