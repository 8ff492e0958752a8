"""The scheduler of renewals and deadlines, and the one timer thread of the process.

The timer thread never does input or output: a store that hangs must not keep a holder from learning of
its deadline. Most leases are released long before their first renewal, so leases that are due at about
the same time share a bucket: putting one in and taking it out again is one dict operation each.
"""

import heapq
import logging
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from math import frexp, ldexp
from queue import Empty, SimpleQueue
from typing import Protocol, cast
from weakref import ref

from dibs.clock import Clock, alarms_of
from dibs.process import on_fork
from dibs.runtime.port import EARLY, Watched

EXACT_BELOW = 0.016
"""Seconds: checks that are due sooner than this are not grouped."""

type Bucket = dict[int, ref[Watched]]


class RenewalScheduler:
    """Leases by the time of their next look; they are held weakly."""

    def __init__(self, timers: "Timers", due: Callable[[list[Watched]], None]) -> None:
        self._timers = timers
        self._due = due
        self._buckets: dict[float, Bucket] = {}
        self._grains: dict[float, float] = {}

    def add(self, lease: Watched, when: float, lead: float) -> None:
        """Look at `lease` at `when`, or by up to `EARLY` of `lead` earlier."""
        grain = self._grains.get(lead) or self._grain(lead)
        slot = when - when % grain if grain else when
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._new_bucket(slot)
        if lease._bucket is not None:
            lease._bucket.pop(id(lease), None)
        lease._bucket = bucket
        bucket[id(lease)] = ref(lease)
        if self._buckets.get(slot) is not bucket:
            self._empty(bucket)  # it rang meanwhile: this process was paused for long, just here

    def discard(self, lease: Watched) -> None:
        """Look at it no more."""
        if lease._bucket is not None:
            lease._bucket.pop(id(lease), None)
            lease._bucket = None

    def leases(self) -> list[Watched]:
        """All leases that are still wanted."""
        found = []
        for bucket in list(self._buckets.values()):
            for reference in list(bucket.values()):
                lease = reference()
                if lease is not None:
                    found.append(lease)
        return found

    def _grain(self, lead: float) -> float:
        """A power of two, so that leases of like ttls share buckets; 0 where the time is exact."""
        if lead < EXACT_BELOW:
            return 0.0
        if len(self._grains) > 256:
            self._grains.clear()
        grain = self._grains[lead] = ldexp(1.0, frexp(lead * EARLY)[1] - 1)
        return grain

    def _new_bucket(self, slot: float) -> Bucket:
        bucket: Bucket = {}
        if self._buckets.setdefault(slot, bucket) is bucket:
            self._timers.at(slot, lambda: self._ring(slot))
        return self._buckets.get(slot, bucket)

    def _ring(self, slot: float) -> None:
        self._empty(self._buckets.pop(slot, {}))

    def _empty(self, bucket: Bucket) -> None:
        due = []
        for number in list(bucket):
            reference = bucket.pop(number, None)
            lease = None if reference is None else reference()
            if lease is not None and lease._bucket is bucket:
                lease._bucket = None
                due.append(lease)
        if due:
            self._due(due)


log: logging.Logger = logging.getLogger("dibs")

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
        self.start()
        return timer.cancel

    def start(self) -> None:
        """Start the thread, unless it runs. Raises `RuntimeError` if the process starts no more threads.

        Should two be started at once, they share the work.
        """
        if self._thread is not None and self._thread.is_alive():
            return
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
    if alarms_of(clock) is not None:
        return cast(Timers, clock)
    shared = _system.get(type(clock))
    if shared is None:
        shared = _system.setdefault(type(clock), ThreadTimers(clock))
    return shared
