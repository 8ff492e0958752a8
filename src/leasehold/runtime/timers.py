"""Callbacks at given times, from one daemon thread that never does input or output.

A keeper whose store hangs must not keep a holder from learning of its deadline, so time is told here
and the store is called elsewhere.
"""

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Protocol

from leasehold.clock import Clock
from leasehold.fork import on_fork

log = logging.getLogger("leasehold")


class Timers(Protocol):
    """Tells when a time has come."""

    def at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at a time of the clock, from another thread; the result cancels that."""


class ThreadTimers:
    """Timers on a real clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count()
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        self._reset()

    def at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        with self._changed:
            number = next(self._numbers)
            self._callbacks[number] = callback
            heapq.heappush(self._heap, (when, number))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="leasehold-timers", daemon=True
                )
                self._thread.start()
            elif self._heap[0][1] == number:
                self._changed.notify()

        def cancel() -> None:
            self._callbacks.pop(number, None)

        return cancel

    def _run(self) -> None:
        while True:
            callback = self._next()
            try:
                callback()
            except Exception:
                log.exception("a timer's callback failed")
            del callback

    def _next(self) -> Callable[[], None]:
        """Sleep until a callback is due; the boot clock runs on in suspend, so look often enough."""
        with self._changed:
            while True:
                left = self._heap[0][0] - self._clock.now() if self._heap else None
                if left is None or left > 0:
                    self._changed.wait(left if left is None else min(left, 60.0))
                    continue
                callback = self._callbacks.pop(heapq.heappop(self._heap)[1], None)
                if callback is not None:
                    return callback


_system: dict[type, ThreadTimers] = {}


def timers_for(clock: Clock) -> Timers:
    """A clock that is moved by hand brings its own timers; the system's clock shares one thread."""
    if hasattr(clock, "at"):
        own: Timers = clock
        return own
    shared = _system.get(type(clock))
    if shared is None:
        shared = _system.setdefault(type(clock), ThreadTimers(clock))
    return shared
