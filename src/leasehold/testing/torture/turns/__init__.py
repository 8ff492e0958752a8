"""What is done with each primitive, one file for each: both worlds take turns by the same text."""

from leasehold.testing.torture.turns.allof import AllOfTurns
from leasehold.testing.torture.turns.leader import LeaderTurns
from leasehold.testing.torture.turns.lock import LockTurns
from leasehold.testing.torture.turns.rwlock import RWLockTurns
from leasehold.testing.torture.turns.semaphore import SemaphoreTurns
from leasehold.testing.torture.turns.tasklock import TaskLockTurns
from leasehold.testing.torture.turns.turns import Turns

TURNS: dict[str, type[Turns]] = {
    "lock": LockTurns,
    "semaphore": SemaphoreTurns,
    "rwlock": RWLockTurns,
    "tasklock": TaskLockTurns,
    "leader": LeaderTurns,
    "allof": AllOfTurns,
}
"""By primitive."""
