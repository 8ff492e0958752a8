"""Telling whoever asked how a wait goes: who holds it, how many are ahead, how long it may take."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dibs.locks.messages import contention, key_shown, span
from dibs.model import Holder, Status

log = logging.getLogger("dibs")

EVERY = 1.0
"""Seconds between two reports of a wait."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a wait goes at this moment. As a text it is one line for people."""

    key: bytes
    holders: tuple[Holder, ...]
    """Who is in the way, since when, and when their leases expire unless they are renewed."""
    position: int | None
    """How many are ahead; None where the store doesn't say, as it has no more places to give."""
    waiting: int
    """How many wait in all."""
    waited: float
    """The seconds since the wait began."""
    estimate: float | None
    """The seconds that are left at the pace at which the place has moved so far; None if it hasn't."""

    def __str__(self) -> str:
        left = "" if self.estimate is None else f"; about {span(self.estimate)} left"
        return f"{contention(self.key, self.holders, self.position)}{left}"


type OnWait = Callable[[Waiting], Any]
"""Called with how a wait goes; in an event loop it may return something to await."""


class Pace:
    """How fast a place has moved, and so how long it will take to the front."""

    __slots__ = ("_first", "_last", "_moved_at", "_since")

    def __init__(self, now: float) -> None:
        self._since = self._moved_at = now
        self._first: int | None = None
        self._last = 0

    def saw(self, position: int | None, now: float) -> None:
        """So many were ahead then. Who comes in by priority only makes it slower."""
        if position is None:
            return
        if self._first is None:
            self._first = self._last = position
        if position < self._last:
            self._moved_at = now
        self._last = position

    def left(self, now: float) -> float | None:
        """The seconds until those who are ahead and the holder have had their turns."""
        if self._first is None or self._last >= self._first:
            return None
        each = (self._moved_at - self._since) / (self._first - self._last)
        return max(each * (self._last + 1) - (now - self._moved_at), 0.0)


class Watcher:
    """Tells one callback about one wait."""

    __slots__ = ("_key", "_on_wait", "_pace", "_since")

    def __init__(self, key: bytes, on_wait: OnWait, now: float) -> None:
        self._key = key
        self._on_wait = on_wait
        self._since = now
        self._pace = Pace(now)

    async def tell(self, status: Status, position: int | None, now: float) -> None:
        """Call it. What goes wrong there ends no wait."""
        self._pace.saw(position, now)
        waiting = Waiting(
            key=self._key,
            holders=status.holders,
            position=position,
            waiting=status.waiting,
            waited=now - self._since,
            estimate=self._pace.left(now),
        )
        try:
            told = self._on_wait(waiting)
            if inspect.isawaitable(told):
                await told
        except Exception:
            log.exception("on_wait of %s failed", key_shown(self._key))


def check_on_wait(on_wait: object, *, may_await: bool) -> None:
    """Raises `TypeError` for what can't be called, and for a coroutine function where nobody awaits."""
    if not callable(on_wait):
        raise TypeError(f"on_wait is {on_wait!r}: give a function that takes a Waiting")
    if not may_await and inspect.iscoroutinefunction(on_wait):
        raise TypeError(
            f"on_wait is {on_wait!r}, a coroutine function, and a thread that waits has no event loop: "
            "give a plain function"
        )
