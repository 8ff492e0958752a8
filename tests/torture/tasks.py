"""Coroutines in virtual time: they wait for signals, can be cancelled, and end with their process."""

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.torture.engine import Process


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
        return await _Suspended(self)


class _Suspended:
    __slots__ = ("_signal",)

    def __init__(self, signal: SimSignal) -> None:
        self._signal = signal

    def __await__(self) -> Generator[SimSignal, bool, bool]:
        return (yield self._signal)


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
