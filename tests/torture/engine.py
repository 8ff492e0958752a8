"""Virtual time: events in order, processes with uneven clocks that can pause or die, and their tasks."""

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from types import coroutine
from typing import Any

from dibs.testing import ManualClock
from dibs.testing.clock import EPOCH

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
        return self.offset + self.rate * self.engine.now

    def real(self, local: float) -> float:
        """The true time at which its clock shows `local`."""
        return (local - self.offset) / self.rate

    def at(self, local: float, call: Call, value: Any = None) -> None:
        self.engine.at(max(self.real(local), self.engine.now) + JUST_AFTER, call, value, self)

    def soon(self, call: Call, value: Any = None) -> None:
        self.engine.at(self.engine.now, call, value, self)

    def spawn(self, coroutine: Any) -> "Task | None":
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
                    order = self.random.random()  # what comes first then is anybody's guess
                    late = (process.paused_until, order, number, call, value, process)
                    heapq.heappush(heap, late)
                    continue
            if when > self.now:
                advance(when - self.now)
                self.now = when
            call(value)


# ---- tasks: they wait for signals, can be cancelled, and end with their process --------------------


class Cancelled(BaseException):
    """Somebody wants the task to end what it does; `by` is the guard of a lost lease, or nobody."""

    def __init__(self, by: object = None) -> None:
        super().__init__(by)
        self.by = by


class Dead(BaseException):
    """Its process was killed: nothing that it would still do can have an effect."""


class Task:
    """A coroutine on its way through virtual time; it awaits nothing but `Signal.wait`."""

    __slots__ = ("_coroutine", "_ends", "_interrupt", "_on", "_process", "done", "name")

    def __init__(self, process: "Process", coroutine: Coroutine[Any, Any, Any]) -> None:
        self._process = process
        self._coroutine = coroutine
        self._on: SimSignal | None = None
        self._interrupt: Cancelled | None = None
        self._ends: list[SimSignal] = []
        self.done = False
        self.name: Any = None

    def step(self, value: Any) -> None:
        self._process.running = self
        interrupt, self._interrupt = self._interrupt, None
        try:
            if interrupt is not None:
                signal = self._coroutine.throw(interrupt)
            else:
                signal = self._coroutine.send(value)
        except (StopIteration, Cancelled):
            self._end()
            return
        self._on = signal
        if self._interrupt is None:
            signal.wake = self.step
        else:
            self._process.soon(self.step)

    def _end(self) -> None:
        self.done = True
        self._process.tasks.pop(self, None)
        for signal in self._ends:
            signal.set()

    def close(self) -> None:
        """Its process was killed."""
        self.done = True
        try:
            self._coroutine.close()
        except (Dead, Cancelled):
            pass

    # -- from outside -------------------------------------------------------------------------------

    def cancel(self, by: object = None) -> None:
        """Raise `Cancelled` where it waits, or waits next."""
        if self.done:
            return
        if self._interrupt is None or by is None:
            self._interrupt = Cancelled(by)
        if self._on is not None and self._on.wake is not None:
            self._on.wake = None
            self._process.soon(self.step)

    def spare(self, by: object) -> None:
        """A cancellation by `by` that has not reached it is taken back."""
        if self._interrupt is not None and self._interrupt.by is by:
            self._interrupt = None

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; tell whether it has."""
        if not self.done:
            signal = SimSignal(self._process)
            self._ends.append(signal)
            await signal.wait(timeout)
        return self.done


class SimSignal:
    """Set at most once; awaited by one task of its process."""

    __slots__ = ("_done", "_process", "value", "wake")

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._done = False
        self.value: Any = None
        self.wake: Callable[[Any], None] | None = None

    def set(self, value: object = None) -> None:
        if not self._done:
            self.value = value
            self._finish(told=True)

    def _finish(self, *, told: bool) -> None:
        self._done = True
        wake, self.wake = self.wake, None
        if wake is not None:
            self._process.soon(wake, told)

    def _time_out(self, _: object) -> None:
        if not self._done:
            self._finish(told=False)

    async def wait(self, timeout: float | None) -> bool:
        if not self._process.alive:
            raise Dead
        if self._done:
            return True
        if timeout is not None:
            self._process.at(self._process.now() + timeout, self._time_out)
        return await self._suspended()

    @coroutine
    def _suspended(self) -> Generator["SimSignal", bool, bool]:
        return (yield self)


class SimGuard:
    """Interrupts a body whose lease was lost, by the rules of `asyncio.timeout`."""

    __slots__ = ("_fired", "_process", "_task")

    is_orphaned = False
    """Tasks of a simulation leave their blocks, or die with their process."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._task: Task | None = None
        self._fired = False

    def enter(self) -> None:
        self._task = self._process.running

    def fire(self) -> None:
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel(self)

    def leave(self, exc: BaseException | None) -> bool:
        task, self._task = self._task, None
        if task is not None and self._fired:
            task.spare(self)
        return exc is None or (isinstance(exc, Cancelled) and exc.by is self)
