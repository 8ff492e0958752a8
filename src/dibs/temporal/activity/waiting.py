"""Waiting for a slot: a task of its own, which outlives the attempt that began it."""

import asyncio
from typing import Any

from dibs import Lease
from dibs.temporal.activity.slots import Slots

LINGER = 15.0
"""A place is kept so long for the next attempt, in seconds, after an attempt has ended that waited."""

type Which = tuple[str, ...]
"""An activity: its namespace, run and id, and the lock's name."""


class Wait:
    """One activity's wait for a slot, over as many attempts as that takes."""

    def __init__(self, slots: Slots, wait: float | None) -> None:
        self.slots = slots
        self.since = asyncio.get_running_loop().time()
        self.task: asyncio.Task[Lease] = asyncio.create_task(_acquired(slots, wait))

    @property
    def waited(self) -> float:
        """For how long, in seconds."""
        return asyncio.get_running_loop().time() - self.since

    async def give_up(self) -> None:
        """Leave nothing behind, also where it has just been granted."""
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled() and self.task.exception() is None:
            await self.task.result().release()


async def _acquired(slots: Slots, wait: float | None) -> Lease:
    return await slots.acquire(wait=wait)


type _Key = tuple[asyncio.AbstractEventLoop, Which]


def _key(which: Which) -> _Key:
    """Workers of several event loops may share an interceptor, but no task."""
    return asyncio.get_running_loop(), which


class WaitingRoom:
    """The waits of a worker: those whose attempt has ended, and all that goes on without a slot."""

    def __init__(self) -> None:
        self._lingering: dict[_Key, tuple[Wait, asyncio.TimerHandle]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def resumed(self, which: Which) -> Wait | None:
        """The wait that an earlier attempt here has left, with its place in the queue."""
        found = self._lingering.pop(_key(which), None)
        if found is None:
            return None
        wait, timer = found
        timer.cancel()
        return wait

    def linger(self, which: Which, wait: Wait) -> None:
        """Keep the place for a while, until the next attempt comes."""
        loop = asyncio.get_running_loop()
        self._lingering[_key(which)] = wait, loop.call_later(LINGER, self._forget, which)

    def spawn(self, body: Any) -> None:
        """Go on in the background."""
        task = asyncio.create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, which: Which) -> None:
        wait = self.resumed(which)
        if wait is not None:
            self.spawn(wait.give_up())

    async def close(self) -> None:
        """Nobody waits here any more."""
        loop = asyncio.get_running_loop()
        for whose, which in list(self._lingering):
            if whose is loop:
                self._forget(which)
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
