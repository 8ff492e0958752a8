"""Reports about a wait, for `on_wait`: who holds it, how many are ahead, how long it may take."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dibs.locks.messages import ASIDE, IS_MOVING, describe_holders, format_duration, format_key
from dibs.model import Holder, Inspect, Status
from dibs.runtime.port import Runtime

log: logging.Logger = logging.getLogger("dibs")

EVERY = 1.0
"""Seconds between two reports of a wait."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """State of a wait. `str()` of it is one line for people."""

    key: bytes
    holders: tuple[Holder, ...]
    """The holders, since when, and when their leases expire unless renewed."""
    position: int | None
    """Number of waiters ahead; None outside the queue: it is full, or its directory is moving."""
    waiting: int
    """Number of all waiters."""
    waited: float
    """Seconds since the wait began."""
    estimate: float | None
    """Seconds left, at the speed at which the position has moved so far; None if it has not moved."""
    is_moving: bool = False
    """The lock service is moving the directory to another store. This wait queues again afterwards."""

    def __str__(self) -> str:
        if self.is_moving:
            return f"{format_key(self.key)}: {IS_MOVING}"
        left = "" if self.estimate is None else f"; about {format_duration(self.estimate)} left"
        return f"{describe_holders(self.key, self.holders, self.position)}{left}"


type OnWait = Callable[[Waiting], Any]
"""Called with the state of a wait; in an event loop it can be a coroutine function."""


class WaitEstimator:
    """Estimates the time to the front of the queue from the speed of a position."""

    def __init__(self, now: float) -> None:
        self._since = self._moved_at = now
        self._first: int | None = None
        self._last = 0

    def saw(self, position: int | None, now: float) -> None:
        """Note the position at a time. Later waiters of a higher priority only make it slower."""
        if position is None:
            return
        if self._first is None:
            self._first = self._last = position
        if position < self._last:
            self._moved_at = now
        self._last = position

    def left(self, now: float) -> float | None:
        """Seconds until the holder and the waiters ahead have released."""
        if self._first is None or self._last >= self._first:
            return None
        each = (self._moved_at - self._since) / (self._first - self._last)
        return max(each * (self._last + 1) - (now - self._moved_at), 0.0)


class WaitReporter:
    """Calls `on_wait` of one wait. Call `report` at `due_at`."""

    def __init__(self, rt: Runtime, key: bytes, on_wait: OnWait, since: float) -> None:
        self._rt = rt
        self._key = key
        self._on_wait = on_wait
        self._since = since
        self._estimator = WaitEstimator(since)
        self.due_at: float = since

    async def report(self, place: str, ahead: int | None, *, is_moving: bool = False) -> None:
        """Ask the store for the holders, and call `on_wait`. Its exceptions end no wait.

        `place` is the fingerprint of the position, `ahead` its number by the latest reply.
        """
        try:
            status = (await self._rt.call(Inspect(self._key), ASIDE)).reply
            if isinstance(status, Status):
                named = [waiter.lease for waiter in status.waiters]
                await self._call(status, named.index(place) if place in named else ahead, is_moving)
        finally:
            self.due_at = self._rt.now() + EVERY

    async def _call(self, status: Status, position: int | None, is_moving: bool) -> None:
        now = self._rt.now()
        self._estimator.saw(position, now)
        waiting = Waiting(
            key=self._key,
            holders=status.holders,
            position=position,
            waiting=status.waiting,
            waited=now - self._since,
            estimate=self._estimator.left(now),
            is_moving=is_moving,
        )
        try:
            result = self._on_wait(waiting)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("on_wait of %s failed", format_key(self._key))


def check_on_wait(on_wait: object, *, may_await: bool) -> None:
    """Raise `TypeError` for anything but a function, and for a coroutine function in threads."""
    if not callable(on_wait):
        raise TypeError(f"on_wait is {on_wait!r}: give a function that takes a Waiting")
    if not may_await and inspect.iscoroutinefunction(on_wait):
        raise TypeError(
            f"on_wait is {on_wait!r}, a coroutine function, and a thread that waits has no event loop: "
            "give a plain function"
        )
