"""What a waiter does besides waiting: it tells how the wait goes, and looks for a circle it is in.

A wait costs nothing more unless somebody asked to be told, or the waiter holds something else and has
waited for a while.
"""

from math import inf
from typing import TYPE_CHECKING

from dibs.errors import Deadlock, DibsError
from dibs.model import Inspect, Status
from dibs.primitives.ask import Ask
from dibs.primitives.refusals import ASIDE
from dibs.primitives.watching import EVERY, OnWait, Watcher
from dibs.runtime.port import Runtime

if TYPE_CHECKING:
    from dibs.primitives.circles import Detective

FIRST_LOOK = 1.0
"""Who has waited for so many seconds looks for a circle; then after twice as long, and so on."""


def first_due(rt: Runtime, ask: Ask, on_wait: OnWait | None, since: float) -> float:
    """When somebody who has waited since then has something to look out for; `inf` if never.

    Nobody waits for a task or thread that holds nothing. What it adopts or acquires in its own `on_wait`
    counts if that is before the first look; it can't come to hold anything in another way while it waits.
    """
    if on_wait is not None:
        return since
    if _detects(rt, ask) and rt.holding.of(rt.me()):
        return since + FIRST_LOOK
    return inf


def _detects(rt: Runtime, ask: Ask) -> bool:
    return ask.detects and rt.capabilities.circles


class Lookout:
    """One wait's, made when something is due for the first time. The waiter calls `end` however it ends."""

    __slots__ = (
        "_ask",
        "_detective",
        "_interval",
        "_look_at",
        "_rt",
        "_since",
        "_tell_at",
        "_watcher",
    )

    def __init__(self, rt: Runtime, ask: Ask, on_wait: OnWait | None, since: float) -> None:
        self._rt = rt
        self._ask = ask
        self._since = since
        self._watcher = None if on_wait is None else Watcher(ask.key, on_wait, since)
        self._tell_at = inf if on_wait is None else since
        self._look_at = since + FIRST_LOOK if _detects(rt, ask) else inf
        self._interval = FIRST_LOOK
        self._detective: Detective | None = None

    async def look(self, place: str, ahead: int | None) -> float:
        """Do what is due, from the place of that fingerprint; return when something will be due again.

        Without a place (it is empty) no circle is looked for until there is one. `ahead` is how many were
        before it when the store was last asked. Raises `Deadlock`, and nothing else.
        """
        try:
            if self._tell_at <= self._rt.now():
                await self._tell(place, ahead)
            if place and self._look_at <= self._rt.now():
                await self._search(place)
        except Deadlock:
            raise
        except DibsError:
            pass  # the store is away: who waits will find that out, and say so
        return min(self._tell_at, self._look_at)

    def end(self) -> None:
        """The wait is over."""
        if self._detective is not None:
            self._detective.withdraw()

    async def _tell(self, place: str, ahead: int | None) -> None:
        assert self._watcher is not None
        try:
            status = (await self._rt.call(Inspect(self._ask.key), ASIDE)).reply
            if isinstance(status, Status):
                named = [waiter.lease for waiter in status.waiters]
                ahead = named.index(place) if place in named else ahead
                await self._watcher.tell(status, ahead, self._rt.now())
        finally:
            self._tell_at = self._rt.now() + EVERY

    async def _search(self, place: str) -> None:
        if self._detective is None:
            from dibs.primitives.circles import Detective  # only who may need it pays for it

            self._detective = Detective(self._rt, self._ask, self._since)
        if not self._detective.holds_anything:
            self._look_at = inf  # and who waits can't come to hold anything
            return
        self._interval = min(2 * self._interval, max(self._ask.ttl / 2, FIRST_LOOK))
        try:
            await self._detective.look(place)
        finally:
            self._look_at = self._rt.now() + self._interval
