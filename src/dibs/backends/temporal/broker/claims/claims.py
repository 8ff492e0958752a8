"""A sharing broker holds the permit IDs of the slots that it grants: so slot mode and it exclude each other.

A permit is taken when somebody is to be granted its slot, passes from holder to holder within the broker,
and is given back when nobody has wanted it for a while.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow

from dibs.backends.temporal.broker.claims.doubt import doubtful, staying
from dibs.backends.temporal.broker.claims.permits import Permits
from dibs.backends.temporal.broker.claims.slots import Slots
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.protocol.bounds import LOOKS_AGAIN
from dibs.backends.temporal.protocol.owners import Owner
from dibs.model import Command


class Claims:
    """Which permits a broker wants, and which it wants no more."""

    LINGER = 3.0
    """So long a permit is kept though nobody wants it."""
    SOONEST, SLOWEST = 1.0, LOOKS_AGAIN
    """Between looks at whether a permit that others have is free."""

    def __init__(
        self,
        slots: Slots,
        clock: Callable[[], float],
        lost: Callable[[int], None],
        changed: Callable[[], None],
        state: dict[str, Any] | None,
        desk: Desk,
        settle: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._clock = clock
        """The time of the book."""
        self._changed = changed
        self._desk = desk
        self._settle = settle
        """Do what time alone brings."""
        self._permits = Permits(slots, clock, lost, changed, state or {})
        self._spare_since: dict[int, float] = {}
        self._seeking: asyncio.Task[None] | None = None
        self._seek_at = 0.0
        self._ask_at = 0.0
        """When to ask after permits of ours again."""
        self._backoff = self.SOONEST
        self._first: list[asyncio.Task[None]] = []
        self.order = asyncio.Lock()
        """Calls are applied one after the other, though one may have to wait for permits."""

    def dump(self) -> dict[str, Any]:
        """For the next run."""
        return self._permits.dump()

    @property
    def at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return self._permits.at_rest and not self._seeking

    @property
    def empty(self) -> bool:
        """No permit is held."""
        return not self._permits.ours and self.at_rest

    def unwatched(self) -> list[Owner]:
        """Permits whose end nobody would tell us, as a run before this one started them."""
        return self._permits.unwatched()

    def lose_runs(self, closed: Sequence[Owner]) -> None:
        """These runs have ended: slots whose permits they were are no longer ours to grant."""
        self._permits.lose_runs(closed)

    def guard(self, command: Command | None, now: float) -> bool:
        """Nothing is granted on a permit that may be gone: its slot is closed before the ledger is asked.

        One in use is closed when it is about to be given up, so that it does not look like two before.
        Whether there was anything to close.
        """
        sure, closed = self._permits.sure(), self._slots.closed()
        shut = doubtful(self._desk, command, sure, closed, now)
        again = closed & self._permits.ours.keys()
        again = again & staying(self._desk, command, now) if again else again
        if not (shut or again):
            return False
        for slot in shut:
            self._slots.close(slot, now)
        for slot in sorted(again):
            self._slots.open(slot)
        return bool(shut)

    # -- taking -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Of a broker that has granted slots without permits: nothing more before it has them."""
        self._first = [
            asyncio.create_task(self._permits.take(slot))
            for slot in sorted(self._slots.close_all(self._clock()))
        ]

    async def make_room(self, command: Command) -> None:
        """Have the permits with which a command is granted at once, if they are to be had."""
        self._slots.fit(command, self._permits.ours, self._clock())
        if self.guard(command, self._clock()):
            self._settle()  # what has ended would seem to be in the way
        wanted = self._slots.wanted_by(command)
        if wanted:
            await self._take(wanted, command)

    async def _take(self, wanted: Sequence[int], command: Command | None) -> None:
        """Try these slots, as many at a time as are still missing."""
        left = list(wanted)
        while left and (missing := self._slots.still_missing(command)) > 0:
            some, left = left[:missing], left[missing:]
            await asyncio.gather(*(self._permits.take(slot) for slot in some))

    async def _seek(self, wanted: Sequence[int]) -> None:
        ours = self._permits.ours
        await self._take(sorted(wanted, key=lambda slot: slot not in ours), None)
        found = self._slots.still_missing(None) <= 0
        self._ask_at = 0.0 if found else workflow.time() + self.SOONEST
        self._backoff = self.SOONEST if found else min(2 * self._backoff, self.SLOWEST)
        jitter = 0.75 + workflow.random().random() / 2
        self._seek_at = 0.0 if found else workflow.time() + self._backoff * jitter
        self._seeking = None
        self._changed()

    # -- what has to be done from time to time ------------------------------------------------------

    def work(self, now: float, *, waiting: bool) -> None:
        """Seek permits for the head of the queue, give back what is spare, and keep the rest alive."""
        if waiting and self._seeking is None:
            wanted = self._slots.wanted_by_head()
            if wanted and now >= self._seek_due(wanted):
                self._seeking = asyncio.create_task(self._seek(wanted))
        self._note_spare(now, waiting=waiting)
        for slot, since in list(self._spare_since.items()):
            if now >= since + self.LINGER:
                del self._spare_since[slot]
                self._permits.give_back(slot)
        self._permits.keep_up(now)

    def _seek_due(self, wanted: Sequence[int]) -> float:
        """Sooner where permits of ours will do, which need only be asked after."""
        ours = sum(slot in self._permits.ours for slot in wanted)
        return self._ask_at if ours >= self._slots.still_missing(None) else self._seek_at

    def _note_spare(self, now: float, *, waiting: bool) -> None:
        kept = waiting or self.order.locked()
        spare = set() if kept else set(self._permits.ours) - self._slots.in_use()
        self._spare_since = {slot: self._spare_since.get(slot, now) for slot in sorted(spare)}

    def due(self) -> float | None:
        """When `work` has something to do, if nothing happens before."""
        times = [since + self.LINGER for since in self._spare_since.values()]
        times += [at for at in (self._permits.due(),) if at is not None]
        wanted = self._slots.wanted_by_head() if self._seeking is None else []
        if wanted:
            times.append(self._seek_due(wanted))
        return min(times, default=None)
