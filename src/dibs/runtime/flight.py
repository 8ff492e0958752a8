"""A batch that the store has launched: it lands in the loop, once, or is given up when it is too late."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Reply
from dibs.runtime.halving import Outcome
from dibs.runtime.port import Answer
from dibs.stores.port import Launch

FINEST = 0.004
"""Seconds between two looks at what is late, at least: each goes through all that is under way."""


class Call:
    """A command, and the future that waits for its answer."""

    __slots__ = ("command", "context", "future", "limit", "until", "waits")

    def __init__(
        self, command: Command, future: asyncio.Future[Answer], limit: float, waits: float
    ) -> None:
        self.command = command
        self.future = future
        self.limit = limit
        """Seconds that one round trip may take for it."""
        self.waits = waits
        """Seconds that its caller waits."""
        self.until = future.get_loop().time() + waits
        self.context: Context | None = None
        """The caller's, where the backend wants to be called in one."""

    def too_late(self) -> None:
        """Its caller waits no longer; what is on its way goes on."""
        if not self.future.done():
            told = f"the store did not answer within {self.waits:.3g} s"
            self.future.set_exception(BackendUnavailable(told))


class Tower(Protocol):
    """Who keeps the books of what is under way."""

    until: float
    """When what is under way is given up, on the loop's clock: one connection carries it all."""

    def departs(self, flight: "Flight") -> None:
        """It leaves now."""

    def stays(self, flight: "Flight") -> None:
        """It could not leave."""

    def watches(self, flight: "Flight") -> None:
        """It is under way until it lands, or its `until`."""

    def lands(self, flight: "Flight", outcomes: Sequence[Outcome]) -> None:
        """It is down, and this came of it."""

    def diverts(self, flight: "Flight", *, resent: bool) -> None:
        """It is down, and has to go another way, perhaps as a copy of what has arrived."""


class Flight:
    """A batch that the store has launched: it lands in the loop, once."""

    __slots__ = ("_give_up", "_over", "_tower", "batch", "commands", "sent")

    def __init__(
        self, tower: Tower, batch: list[Call], commands: Sequence[Command], sent: float
    ) -> None:
        self._tower = tower
        self.batch = batch
        self.commands = commands
        self.sent = sent
        self._over = False
        self._give_up: Callable[[], None] = _nothing

    @property
    def until(self) -> float:
        """When it is given up, on the loop's clock."""
        return self._tower.until

    def begin(self, launch: Launch) -> bool:
        """Leave, unless the store is not connected."""
        tower = self._tower
        tower.departs(self)
        try:
            give_up = launch(self.commands, self._land)
        except Exception as error:  # noqa: BLE001  # whatever it was, every caller must be told
            self._end([as_dibs(error)] * len(self.batch))
            return True
        if give_up is None:
            tower.stays(self)
            return False
        if not self._over:
            self._give_up = give_up
            tower.watches(self)
        return True

    def too_late(self) -> None:
        """It has been under way for too long."""
        if self._over:
            return  # giving up another one of the same connection has ended this
        self._end([BackendUnavailable("the store did not answer in time")] * len(self.batch))
        self._give_up()

    def _land(self, outcome: Sequence[Reply] | DibsError | None) -> None:
        if self._over:
            return None
        if outcome is not None and not isinstance(outcome, DibsError):
            return self._end(outcome)
        its_own = isinstance(outcome, BackendUnavailable) and len(self.batch) > 1
        if outcome is not None and not its_own:
            return self._end([outcome] * len(self.batch))
        self._over = True
        self._tower.diverts(self, resent=its_own)  # the others of a batch may be well

    def _end(self, outcomes: Sequence[Outcome]) -> None:
        self._over = True
        self._tower.lands(self, outcomes)


def as_dibs(error: BaseException) -> DibsError:
    """What a caller is told of a failed flight."""
    if isinstance(error, DibsError):
        return error
    if isinstance(error, TimeoutError):
        return BackendUnavailable("the store did not answer in time")
    if isinstance(error, asyncio.CancelledError):
        return BackendUnavailable("the event loop shut down while the store was being asked")
    failure = BackendUnavailable(f"the store failed: {error!r}")
    failure.__cause__ = error
    return failure


def _nothing() -> None:
    """There is nothing to be given up yet."""


class Watch:
    """Sees that calls and flights end in time, by one timer for all: most end long before it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Call | Flight] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: Call | Flight) -> None:
        self._watched.add(item)
        timer = self._timer
        if timer is None or item.until < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(item.until, self._look)

    def discard(self, item: Call | Flight) -> None:
        self._watched.discard(item)

    def _look(self) -> None:
        now, self._timer = self._loop.time(), None
        for item in [item for item in self._watched if item.until <= now]:
            self._watched.discard(item)
            item.too_late()
        if self._watched:
            soonest = min(item.until for item in self._watched)
            self._timer = self._loop.call_at(max(soonest, now + FINEST), self._look)
