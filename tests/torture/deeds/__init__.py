"""What a simulated hand does with each primitive, and how often."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.torture.deeds import leading, locks, readwrite, semaphores, starts, together

type Deed = Callable[[Any], Awaitable[None]]


class Kind(NamedTuple):
    """One of the things to do."""

    do: Deed
    weight: float


DEEDS = {
    "lock": Kind(locks.lock, 5),
    "nested": Kind(locks.nested, 1),
    "crossed": Kind(locks.crossed, 0.5),
    "reentrant": Kind(locks.reentrant, 1),
    "delayed": Kind(locks.delayed, 1),
    "semaphore": Kind(semaphores.semaphore, 4),
    "elastic": Kind(semaphores.elastic, 3),
    "rwlock": Kind(readwrite.rwlock, 6),
    "tasklock": Kind(starts.tasklock, 6),
    "allof": Kind(together.together, 6),
    "leader": Kind(leading.lead, 2),
    "campaign": Kind(leading.campaign, 2),
    "run": Kind(leading.run, 1),
}
