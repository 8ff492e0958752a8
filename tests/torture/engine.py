"""Virtual time: events in order, processes whose clocks run unevenly and that can pause or die."""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from dibs.testing import ManualClock
from dibs.testing.clock import EPOCH
from tests.torture.tasks import Task

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
        self.disturbed = -1.0
        """When it was last paused, or went on."""
        self.running: Task | None = None
        self.tasks: dict[Task, None] = {}

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

    def spawn(self, coroutine: Any) -> Task | None:
        """Run a coroutine in it, from now on; the dead do nothing."""
        if not self.alive:
            coroutine.close()
            return None
        task, before = Task(self, coroutine), self.running
        self.tasks[task] = None
        task.step(None)
        self.running = before
        return task

    def pause(self, seconds: float) -> None:
        """Stand still."""
        self.paused_until = max(self.paused_until, self.engine.now + seconds)
        self.disturbed = max(self.disturbed, self.paused_until)

    def die(self) -> None:
        """Nothing of it has any effect from now on."""
        self.alive = False
        for task in list(self.tasks):
            task.close()


class Engine:
    """All events, in the order of true time."""

    def __init__(self, seed: int, stamp: int = EPOCH) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(now=0.0, stamp=stamp)
        """The store's, which may have been set forward."""
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
