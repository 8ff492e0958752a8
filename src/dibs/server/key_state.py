"""The last known state of a key in use: its holds and its waiters."""

from dataclasses import dataclass, field
from math import inf

from dibs.model import Holder, Waiter

MAX_SLOTS = 16
"""Slots of a hold that are remembered. A hold with more units is shown without slot numbers."""

MAX_ENDED_SLOTS = 64
"""Slots of a key whose last end is remembered for each."""

UNSEEN = 150.0
"""Seconds after which a waiter that a look has found is dropped, unless another look finds it."""


def known_slots(slots: tuple[int, ...]) -> tuple[int, ...]:
    """Return these slots, or none if they are too many."""
    return slots if len(slots) <= MAX_SLOTS else ()


@dataclass(slots=True, eq=False)
class SeenHold:
    """A hold, as it was seen last. Times are of this machine's clock, which only runs forwards."""

    owner: str
    note: str
    token: int
    units: int
    slots: tuple[int, ...]
    since: float
    ends: float
    """When it ends, unless it is renewed."""
    revoked: bool = False
    is_own: bool = False
    """A command of this server granted or renewed it last."""

    @classmethod
    def of(cls, each: Holder, now: float) -> "SeenHold":
        """A holder that a look has found."""
        since, ends = now - each.held_for, now + each.expires_in
        found = cls(
            each.owner, each.note, each.token, each.units, known_slots(each.slots), since, ends
        )
        found.revoked = each.state == "revoked"
        return found


@dataclass(slots=True, eq=False)
class SeenWaiter:
    """A waiter, as it was seen last."""

    owner: str
    note: str
    units: int
    since: float
    until: float
    """When it is dropped without a sign of life."""

    @classmethod
    def of(cls, waiter: Waiter, now: float) -> "SeenWaiter":
        """A waiter that a look has found."""
        return cls(waiter.owner, waiter.note, waiter.units, now - waiter.waited, now + UNSEEN)


@dataclass(slots=True, eq=False)
class KeyState:
    """A key in use."""

    key: bytes
    holds: dict[str, SeenHold] = field(default_factory=dict)
    """By the fingerprints of lease ids."""
    waiters: dict[str, SeenWaiter] = field(default_factory=dict)
    slots: dict[int, str] = field(default_factory=dict)
    """The lease in each taken slot."""
    units: int = 0
    """Units of all holds together."""
    capacity: int = 0
    """The newest capacity; 0 if not known."""
    ended: dict[int, float] = field(default_factory=dict)
    """When the last hold of each slot ended, for the slots that were freed last. The latest comes last."""
    others_ended: float = -inf
    """When the last hold of all other slots ended."""
    newest_token: int = 0
    """The highest token."""
    as_of: float = -inf
    """When the last command changed it, or the last look at it began. Earlier looks are ignored."""
    scan: int = 0
    """The number of the last scan that found it."""

    def add_hold(self, lease: str, hold: SeenHold) -> None:
        self.holds[lease] = hold
        self.units += hold.units
        if hold.token > self.newest_token:
            self.newest_token = hold.token
        for slot in hold.slots:
            self.slots[slot] = lease

    def remove_hold(self, lease: str) -> SeenHold:
        hold = self.holds.pop(lease)
        self.units -= hold.units
        for slot in hold.slots:
            if self.slots.get(slot) == lease:
                del self.slots[slot]
        return hold

    def slots_ended(self, slots: tuple[int, ...], at: float) -> None:
        """Remember when the hold of these slots ended."""
        for slot in slots:
            self.ended.pop(slot, None)
            self.ended[slot] = at
        while len(self.ended) > MAX_ENDED_SLOTS:
            self.others_ended = max(self.others_ended, self.ended.pop(next(iter(self.ended))))

    def free_since(self, slots: tuple[int, ...]) -> float:
        """Return when the last hold of these slots ended, or a little later."""
        since = -inf
        for slot in slots:
            since = max(since, self.ended.get(slot, self.others_ended))
        return since

    def displaced_by(self, units: int, slots: tuple[int, ...]) -> list[str]:
        """Return the leases that must have ended before these units could be granted.

        They held one of the slots. Or all units together would exceed the capacity, and these leases
        expire first.
        """
        if not self.holds:
            return []
        over = list(dict.fromkeys(self.slots[slot] for slot in slots if slot in self.slots))
        if self.capacity:
            free = self.capacity - units - self.units + sum(self.holds[each].units for each in over)
            if free < 0:
                others = (each for each in self.holds if each not in over)
                for each in sorted(others, key=lambda lease: self.holds[lease].ends):
                    over.append(each)
                    free += self.holds[each].units
                    if free >= 0:
                        break
        return over

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return not (self.holds or self.waiters)
