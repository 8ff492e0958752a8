"""A clock that stands still until a test moves it."""

import heapq
import threading
from collections.abc import Callable
from itertools import count

EPOCH = 1_800_000_000_000_000
"""The stamp of a new clock: early in 2027."""

type Callback = Callable[[], None]


class ManualClock:
    """Stands still until `advance` moves it. Callbacks that are due on the way are called.

    A client whose clock is manual renews, expires and times out only while the clock is advanced,
    so a test of any of these takes no time and always ends the same. All times are in seconds. Any
    thread may read it and set callbacks; advances take turns.
    """

    def __init__(self, now: float = 1000.0, stamp: int = EPOCH) -> None:
        self._now = self._began = now
        self._began_at = stamp
        """The stamp of the moment at which it began."""
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        self._numbers = count()
        self._due: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callback] = {}
        self.on_advance: list[Callback] = []
        """Called at every stop of the clock, after its callbacks: to wait for what they started."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return self._now

    def stamp(self) -> int:
        """Microseconds since 1970, as a wall clock shows them."""
        return self._began_at + round((self._now - self._began) * 1e6)

    def at(self, when: float, callback: Callback) -> Callback:
        """Call back when the clock reaches `when`; the result cancels that.

        The callback runs in the thread that advances the clock. One whose time is over already runs
        soon, in a thread of its own, since the caller may hold what the callback needs.
        """
        with self._lock:
            number = next(self._numbers)
            overdue = when <= self._now
            if not overdue:
                self._callbacks[number] = callback
                heapq.heappush(self._due, (when, number))
        if overdue:
            return self._call_aside(callback)

        def cancel() -> None:
            self._callbacks.pop(number, None)

        return cancel

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, stopping at every time for which a callback was set.

        While a callback runs, the clock stands at its time. Callbacks that it sets for times still
        on the way are called too. Raises `ValueError` for a step back, and whatever a callback
        raises; the clock then stays where that happened.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock that only runs forwards can't advance by {seconds!r} s")
        with self._turn:
            target = self._now + seconds
            while (callbacks := self._next_stop(target)) is not None:
                for callback in callbacks:
                    callback()
                self._after_stop()
            self._move(target)
            self._after_stop()

    def step_stamp(self, seconds: float) -> None:
        """Step the wall clock alone, as an administrator or a time server does; may be negative."""
        with self._lock:
            self._began_at += round(seconds * 1e6)

    @property
    def next_due(self) -> float | None:
        """The next time for which a callback is set."""
        with self._lock:
            self._drop_cancelled()
            return self._due[0][0] if self._due else None

    def _next_stop(self, target: float) -> list[Callback] | None:
        """Move to the next time that is due by `target`, and return what to call there."""
        with self._lock:
            self._drop_cancelled()
            if not self._due or self._due[0][0] > target:
                return None
            when = self._due[0][0]
            self._to(when)
            callbacks: list[Callback] = []
            while self._due and self._due[0][0] <= when:
                callback = self._callbacks.pop(heapq.heappop(self._due)[1], None)
                if callback is not None:
                    callbacks.append(callback)
            return callbacks

    def _drop_cancelled(self) -> None:
        while self._due and self._due[0][1] not in self._callbacks:
            heapq.heappop(self._due)

    def _move(self, when: float) -> None:
        with self._lock:
            self._to(when)

    def _to(self, when: float) -> None:
        if when > self._now:  # a callback may have advanced it further itself
            self._now = when

    def _after_stop(self) -> None:
        for hook in list(self.on_advance):
            hook()

    @staticmethod
    def _call_aside(callback: Callback) -> Callback:
        cancelled = threading.Event()

        def call() -> None:
            if not cancelled.is_set():
                callback()

        threading.Thread(target=call, name="dibs-overdue", daemon=True).start()
        return cancelled.set
