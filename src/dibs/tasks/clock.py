"""The scheduler's time: the wall clock, and waits that end early when the scheduler stops."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from dibs.clock import Clock, alarms_of
from dibs.tasks.schedule import SECOND

LONGEST_NAP = 30.0
"""Seconds after which the wall clock is read again. It can be set, and the machine can sleep."""


class TickClock:
    """Waits for moments, from one start of the scheduler to its stop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        self.stopped: bool = False

    def now(self) -> int:
        """This moment, in microseconds since 1970."""
        return self._clock.stamp()

    def stop(self) -> None:
        """End all waits, now and later."""
        self.stopped = True
        for waiter in self._waiting:
            _resolve(waiter)

    async def nap(self, until: int) -> None:
        """Wait for that moment. It can end early."""
        left = (until - self.now()) / SECOND
        if left <= 0 or self.stopped:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        cancel = self._call_later(min(left, LONGEST_NAP), waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            cancel()

    async def unless_stopped(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Await something that can take for ever, but not beyond the stop."""
        if self.stopped:
            return waiting.close()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(waiter)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _call_later(self, delay: float, waiter: "asyncio.Future[None]") -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        at = alarms_of(self._clock)
        if at is None:
            return loop.call_later(delay, _resolve, waiter).cancel

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, waiter)

        return at(self._clock.now() + delay, ring)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
