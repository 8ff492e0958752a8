"""A way to a store whose waits somebody else may end: what runs in the background can be stopped."""

from typing import Any

from dibs.runtime.port import Runtime, Signal


class Stopped(Exception):
    """Whoever started it wants it no more."""


class Stoppable:
    """A runtime, as it is but for its signals: waiting for one ends in `Stopped` once it is stopped.

    It works alike in both worlds, where a thread that waits could not be interrupted otherwise.
    """

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._waiting: dict[int, Signal] = {}
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rt, name)

    def signal(self) -> "StoppableSignal":
        return StoppableSignal(self, self._rt.signal())

    def stop(self) -> None:
        """End all waits, from any thread."""
        self.stopped = True
        for signal in list(self._waiting.values()):
            signal.set()


class StoppableSignal:
    """See `Stoppable`."""

    __slots__ = ("_of", "_signal")

    def __init__(self, of: Stoppable, signal: Signal) -> None:
        self._of = of
        self._signal = signal

    @property
    def value(self) -> Any:
        return self._signal.value

    @value.setter
    def value(self, value: Any) -> None:
        self._signal.value = value

    def set(self, value: object = None) -> None:
        self._signal.set(value)

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; tell whether it is. Raises `Stopped`."""
        of, number = self._of, id(self)
        of._waiting[number] = self._signal  # first, so that a stop from now on finds it
        try:
            self._go_on()
            was_set = await self._signal.wait(timeout)
        finally:
            of._waiting.pop(number, None)
        self._go_on()
        return was_set

    def _go_on(self) -> None:
        if self._of.stopped:
            raise Stopped
