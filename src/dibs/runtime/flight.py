"""A batch that the store has launched: it lands in the loop, once, or is given up when it is too late."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from dibs.backends.port import Launch
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Reply
from dibs.runtime.halving import Outcome
from dibs.runtime.port import Answer


class Call:
    """A command, and the future that waits for its answer."""

    __slots__ = ("command", "context", "future")

    def __init__(self, command: Command, future: asyncio.Future[Answer]) -> None:
        self.command = command
        self.future = future
        self.context: Context | None = None
        """The caller's, where the backend wants to be called in one."""


class Tower(Protocol):
    """Who keeps the books of what is under way."""

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

    __slots__ = ("_give_up", "_over", "_tower", "batch", "commands", "sent", "until")

    def __init__(
        self, tower: Tower, batch: list[Call], commands: Sequence[Command], sent: float
    ) -> None:
        self._tower = tower
        self.batch = batch
        self.commands = commands
        self.sent = sent
        self._over = False
        self.until = 0.0
        """When it is too late, on the loop's clock."""
        self._give_up: Callable[[], None] = _nothing

    def begin(self, launch: Launch, until: float) -> bool:
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
            self.until = until
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
    """Sees that flights end in time, by one timer for all: most land long before it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flights: set[Flight] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, flight: Flight) -> None:
        self._flights.add(flight)
        timer = self._timer
        if timer is None or flight.until < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(flight.until, self._look)

    def discard(self, flight: Flight) -> None:
        self._flights.discard(flight)

    def _look(self) -> None:
        now, self._timer = self._loop.time(), None
        for flight in list(self._flights):
            if flight.until <= now:
                flight.too_late()
        if self._flights:
            soonest = min(flight.until for flight in self._flights)
            self._timer = self._loop.call_at(soonest, self._look)
