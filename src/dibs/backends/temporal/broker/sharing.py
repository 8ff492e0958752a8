"""Whether a broker holds the permits of the slots that it grants; where it doesn't all this does nothing."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from dibs.backends.temporal.broker.claims.claims import Claims
from dibs.backends.temporal.broker.claims.slots import Slots, shareable
from dibs.backends.temporal.broker.clock import BrokerClock
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.broker.flaws import flaw_of
from dibs.backends.temporal.broker.telling import Telling
from dibs.backends.temporal.protocol.owners import Owner
from dibs.model import Command, Reply


class Sharing:
    """Off, until somebody asks for it; from then on it stays on."""

    def __init__(
        self, desk: Desk, clock: BrokerClock, telling: Telling, changed: Callable[[], None]
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._telling = telling
        self._changed = changed
        self._slots: Slots | None = None
        self._claims: Claims | None = None

    def begin(self, state: dict[str, Any] | None = None) -> None:
        """Hold the permits of the slots that are granted from now on, and of those that were."""
        if self._claims is None and shareable(self._desk.key):
            self._slots = Slots(self._desk)
            self._claims = Claims(
                self._slots,
                self._clock.now,
                self._lose_slot,
                self._changed,
                state,
                self._desk,
                self._settle,
            )
            self._desk.before = self._claims.guard
            if state is None:
                self._claims.begin()

    def dump(self) -> dict[str, Any] | None:
        """For the next run; None where it is off."""
        return self._claims.dump() if self._claims is not None else None

    @property
    def is_on(self) -> bool:
        """Slot mode and this broker exclude each other."""
        return self._claims is not None

    @property
    def at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return self._claims is None or self._claims.at_rest

    @property
    def empty(self) -> bool:
        """No permit is held."""
        return self._claims is None or self._claims.empty

    @property
    def nothing_in_book(self) -> bool:
        """Nobody holds anything, and nobody waits."""
        return self._slots.nothing_else if self._slots else self._desk.book.idle

    # -- a call -------------------------------------------------------------------------------------

    def in_order(self) -> "asyncio.Lock | nullcontext[None]":
        """Calls are applied one after the other, though one may have to wait for permits."""
        return self._claims.order if self._claims is not None else nullcontext()

    def flaw(self, command: Command) -> str | None:
        """Why there can't be permits for what is asked."""
        return flaw_of(command) or self._slots.flaw(command) if self._slots else None

    async def make_room(self, command: Command) -> None:
        """Have the permits with which it is granted at once, if they are to be had."""
        if self._claims is not None:
            await self._claims.make_room(command)

    def open_surplus(self) -> bool:
        """Whether slots that were in the way are not any more."""
        return self._slots is not None and self._slots.open_surplus()

    def seen(self, reply: Reply, now: float, stamp: int) -> Reply:
        """The reply, with the workflows that have slots without this broker."""
        return self._slots.seen(reply, now, stamp) if self._slots else reply

    # -- from time to time --------------------------------------------------------------------------

    def work(self, now: float, *, waiting: bool) -> None:
        """Seek permits for who waits, give back what is spare, and keep the rest alive."""
        if self._claims is not None:
            self._claims.work(now, waiting=waiting)

    def due(self) -> float | None:
        """When `work` has something to do, if nothing happens before."""
        return self._claims.due() if self._claims is not None else None

    def unwatched(self) -> list[Owner]:
        """Permits whose end nobody would tell us."""
        return self._claims.unwatched() if self._claims is not None else []

    def lose_runs(self, closed: Sequence[Owner]) -> None:
        """Those of our permits whose runs have ended are ours no more."""
        if self._claims is not None:
            self._claims.lose_runs(closed)

    def _settle(self) -> None:
        self._telling.push(self._desk.settle(*self._clock.read()))

    def _lose_slot(self, slot: int) -> None:
        """Somebody ended the permit of a slot: whoever was granted it must stop."""
        assert self._slots is not None
        why = f"its permit {self._slots.permit_id(slot)} was ended by somebody else"
        for hold in self._slots.holders_of(slot):
            self._telling.revoke(hold, why)
