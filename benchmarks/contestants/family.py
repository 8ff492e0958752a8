"""Every primitive of Dibs: what a cycle of each costs beside one of a lock on the same store.

Locks, writers, task locks, elections and groups have keys of their own; a semaphore of 64 and a
reader-writer lock's readers share one key among all tasks, and nobody waits.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import dibs
from benchmarks.contestants.kinds import Async, AsyncRun, Contestant
from benchmarks.place import Place

SHARED = 64
"""A semaphore's capacity: as many as there are tasks."""

type Make = Callable[[dibs.Client, str], Any]

PRIMITIVES: dict[str, Make] = {
    "lock": lambda client, key: client.lock(key),
    "semaphore of 64": lambda client, _: client.semaphore("shared", SHARED),
    "rwlock, read": lambda client, _: client.rwlock("shared").read(),
    "rwlock, write": lambda client, key: client.rwlock(key).write(),
    "task lock": lambda client, key: client.task_lock(key, min_hold=0, max_hold=30),
    "leader election": lambda client, key: client.leader_election(key),
    "all of 3 locks": lambda client, key: dibs.AllOf(
        *(client.lock(f"{key}-{part}") for part in range(3))
    ),
}


def _cycling(url_of: Callable[[Place], str], make: Make) -> Async:
    @asynccontextmanager
    async def open_(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
        async with dibs.connect(url_of(place)) as client:

            def on(key: str) -> AsyncRun:
                primitive = make(client, key)

                async def run(n: int) -> None:
                    for _ in range(n):
                        async with primitive:
                            pass

                return run

            yield on

    return Async(open_)


def family(store: str, url_of: Callable[[Place], str]) -> dict[str, Contestant]:
    """All primitives on a store."""
    return {f"dibs {store}, {name}": _cycling(url_of, make) for name, make in PRIMITIVES.items()}
