"""Virtual time: events in order, processes whose clocks run unevenly and that can pause or die."""

import heapq
import random
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from leasehold.testing import ManualClock

type Call = Callable[[Any], None]

JUST_AFTER = 1e-7
"""Rounding must not let a timer ring before its time."""


class Process:
    """A client process: its clock has a rate of its own, and it may stand still for a while."""

    def __init__(self, engine: "Engine", number: int, rate: float, offset: float) -> None:
        self.engine = engine
        self.number = number
        self.rate = rate
        self.offset = offset
        self.alive = True
        self.paused_until = 0.0

    def now(self) -> float:
        """What its clock shows."""
        return self.offset + self.rate * self.engine.now

    def real(self, local: float) -> float:
        """The true time at which its clock shows `local`."""
        return (local - self.offset) / self.rate

    def at(self, local: float, call: Call, value: Any = None) -> None:
        """Call when its clock shows `local`."""
        self.engine.at(max(self.real(local), self.engine.now) + JUST_AFTER, call, value, self)

    def soon(self, call: Call, value: Any = None) -> None:
        """Call in its next moment."""
        self.engine.at(self.engine.now, call, value, self)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in it, from now on; the dead do nothing."""
        if self.alive:
            Task(coroutine).step(None)
        else:
            coroutine.close()

    def pause(self, seconds: float) -> None:
        """Stand still."""
        self.paused_until = max(self.paused_until, self.engine.now + seconds)


class Task:
    """A coroutine on its way through virtual time; it awaits nothing but `Signal.wait`."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def step(self, value: Any) -> None:
        try:
            signal = self._coroutine.send(value)
        except StopIteration:
            return
        signal.wake = self.step


class Engine:
    """All events, in the order of true time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(now=0.0)
        self.now = 0.0
        self._heap: list[tuple[float, float, int, Call, Any, Process | None]] = []
        self._numbers = count()

    def at(
        self, when: float, call: Call, value: Any = None, process: Process | None = None
    ) -> None:
        """Call at a true time, in a process or outside of all."""
        heapq.heappush(self._heap, (when, 0.0, next(self._numbers), call, value, process))

    def run(self, go_on: Callable[[], bool]) -> None:
        """Let events happen until `go_on` says no."""
        heap, advance = self._heap, self.clock.advance
        while heap and go_on():
            when, _, number, call, value, process = heapq.heappop(heap)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until > when:
                    order = (
                        self.random.random()
                    )  # what comes first after a pause is anybody's guess
                    late = (process.paused_until, order, number, call, value, process)
                    heapq.heappush(heap, late)
                    continue
            if when > self.now:
                advance(when - self.now)
                self.now = when
            call(value)
