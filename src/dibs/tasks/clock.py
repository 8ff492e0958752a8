"""The scheduler's time: the wall's, and waits that end early when it is stopped."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from dibs.tasks.schedule import SECOND

LONGEST_NAP = 30.0
"""The wall clock is looked at again after so many seconds: it may be set, and the machine may sleep."""


class Clock(Protocol):
    """What tells the time to the scheduler."""

    def stamp(self) -> int:
        """Microseconds since 1970."""


@runtime_checkable
class SteppedClock(Clock, Protocol):
    """One that doesn't go by itself, for tests: who waits is called back when it gets there.

    `dibs.testing.ManualClock` is one.
    """

    def now(self) -> float:
        """Seconds since an arbitrary moment."""

    def at(self, when: float, callback: Callable[[], None], /) -> Callable[[], None]:
        """Call back, from any thread, when `now()` is that; the result cancels it."""


class WallClock:
    """This machine's."""

    def stamp(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000


class Timekeeper:
    """Waits for moments, from one start of the scheduler to its stop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        self.stopped = False

    def now(self) -> int:
        """This moment."""
        return self._clock.stamp()

    def stop(self) -> None:
        """End all waits, now and later."""
        self.stopped = True
        for waiter in self._waiting:
            _resolve(waiter)

    async def nap(self, until: int) -> None:
        """Wait for that moment; it may end early."""
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
        """Await something that may take for ever, but not beyond the stop."""
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
        clock = self._clock
        if not isinstance(clock, SteppedClock):
            return loop.call_later(delay, _resolve, waiter).cancel

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, waiter)

        return clock.at(clock.now() + delay, ring)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
