"""Callbacks at given times, from one daemon thread that never does input or output.

A keeper whose store hangs must not keep a holder from learning of its deadline, so time is told here
and the store is called elsewhere.
"""

import heapq
import logging
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Protocol, cast

from dibs.clock import Clock
from dibs.fork import on_fork

log = logging.getLogger("dibs")

LOOK_EVERY = 2.0
"""Seconds between two looks at the clock. Sleeping stops in suspend, and the boot clock does not."""


class Timers(Protocol):
    """Tells when a time has come."""

    def at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at a time of the clock, from another thread; the result cancels that."""


class _Timer:
    """A callback and its time; cancelled, it is without a callback."""

    __slots__ = ("callback", "number", "when")

    def __init__(self, when: float, number: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.number = number
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: "_Timer") -> bool:
        return (self.when, self.number) < (other.when, other.number)

    def cancel(self) -> None:
        self.callback = None


class ThreadTimers:
    """Timers on a real clock.

    They are handed over in a queue that a Ctrl-C or a garbage collection can't leave locked, and only
    the thread itself has them in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count()
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._handed_over: SimpleQueue[_Timer] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        self._reset()

    def at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        timer = _Timer(when, next(self._numbers), callback)
        self._handed_over.put(timer)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        return timer.cancel

    def _start(self) -> None:
        """Should two be started at once, they share the work."""
        run = partial(self._run, self._handed_over)
        self._thread = threading.Thread(target=run, name="dibs-timers", daemon=True)
        self._thread.start()

    def _run(self, handed_over: "SimpleQueue[_Timer]") -> None:
        timers: list[_Timer] = []
        while True:
            self._take(handed_over, timers)
            while timers and timers[0].when <= self._clock.now():
                _call(heapq.heappop(timers))

    def _take(self, handed_over: "SimpleQueue[_Timer]", timers: list[_Timer]) -> None:
        """Sleep until a timer is due or comes in, for `LOOK_EVERY` seconds at most."""
        left = min(timers[0].when - self._clock.now(), LOOK_EVERY) if timers else None
        try:
            while True:
                heapq.heappush(timers, handed_over.get(timeout=left and max(left, 0.0)))
                left = 0.0
        except Empty:
            pass


def _call(timer: _Timer) -> None:
    callback = timer.callback
    try:
        if callback is not None:
            callback()
    except Exception:
        log.exception("a timer's callback failed")


_system: dict[type, ThreadTimers] = {}


def timers_for(clock: Clock) -> Timers:
    """A clock that is moved by hand brings its own timers; the system's clock shares one thread."""
    if hasattr(clock, "at"):
        return cast(Timers, clock)
    shared = _system.get(type(clock))
    if shared is None:
        shared = _system.setdefault(type(clock), ThreadTimers(clock))
    return shared
