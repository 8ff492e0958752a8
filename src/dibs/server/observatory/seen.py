"""What a picture has of one key."""

from dataclasses import dataclass, field
from math import inf

from dibs.model import Holder, Waiter

MOST_SLOTS = 16
"""Slots of one hold that are remembered and told. A hold with more units is shown without slot numbers."""

ENDED_SLOTS = 64
"""Slots of one key whose last holds' ends are remembered one by one."""

SILENT = 150.0
"""Seconds after which a place that a look has found is over, if no other look finds it."""


def few(slots: tuple[int, ...]) -> tuple[int, ...]:
    """These slots, or none where they are too many."""
    return slots if len(slots) <= MOST_SLOTS else ()


@dataclass(slots=True, eq=False)
class Hold:
    """A hold, as it was seen last. Times are of this machine's clock, which only runs forwards."""

    owner: str
    note: str
    token: int
    units: int
    slots: tuple[int, ...]
    since: float
    ends: float
    """When it ends, unless it is renewed."""
    ttl: float = 0.0
    """0 where it is not known."""
    renewals: int = 0
    revoked: bool = False

    @classmethod
    def of(cls, each: Holder, now: float) -> "Hold":
        """What a look has found."""
        since, ends = now - each.held_for, now + each.expires_in
        found = cls(each.owner, each.note, each.token, each.units, few(each.slots), since, ends)
        found.revoked = each.state == "revoked"
        return found


@dataclass(slots=True, eq=False)
class Place:
    """A place in line, as it was seen last."""

    owner: str
    note: str
    units: int
    since: float
    until: float
    """When it is over unless its owner is heard of."""

    @classmethod
    def of(cls, waiter: Waiter, now: float) -> "Place":
        """What a look has found."""
        return cls(waiter.owner, waiter.note, waiter.units, now - waiter.waited, now + SILENT)


@dataclass(slots=True, eq=False)
class Seen:
    """A key in use."""

    key: bytes
    holds: dict[str, Hold] = field(default_factory=dict[str, Hold])
    """By the fingerprints of their leases' ids."""
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    slots: dict[int, str] = field(default_factory=dict[int, str])
    """Which of them has a slot."""
    units: int = 0
    """How many units they have together."""
    capacity: int = 0
    """The newest capacity; 0 if it is not known."""
    ended: dict[int, float] = field(default_factory=dict[int, float])
    """When each slot's last hold ended, as far as that was told: of the last ones, the latest last."""
    others_ended: float = -inf
    """When the last hold of all other slots had ended."""
    newest: int = 0
    """The newest token."""
    changed: float = -inf
    """When a command's answer changed it, or the last look began: an earlier look is older than that."""
    walk: int = 0
    """The last walk through the store that has found it."""

    def put(self, lease: str, hold: Hold) -> None:
        """Add a hold."""
        self.holds[lease] = hold
        self.units += hold.units
        self.newest = max(self.newest, hold.token)
        self.slots.update(dict.fromkeys(hold.slots, lease))

    def take(self, lease: str) -> Hold:
        """Remove a hold."""
        hold = self.holds.pop(lease)
        self.units -= hold.units
        for slot in hold.slots:
            if self.slots.get(slot) == lease:
                del self.slots[slot]
        return hold

    def free(self, slots: tuple[int, ...], at: float) -> None:
        """Remember when the hold of these slots ended."""
        for slot in slots:
            self.ended.pop(slot, None)
            self.ended[slot] = at
        while len(self.ended) > ENDED_SLOTS:
            self.others_ended = max(self.others_ended, self.ended.pop(next(iter(self.ended))))

    def free_since(self, slots: tuple[int, ...]) -> float:
        """When the last hold of these slots ended, or a little later."""
        return max((self.ended.get(each, self.others_ended) for each in slots), default=0.0)

    def displaced_by(self, units: int, slots: tuple[int, ...]) -> list[str]:
        """The leases that must have ended, as these units were granted.

        They had one of the slots; or all units together would be more than the capacity, and of all
        leases these were to end first.
        """
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
        """There is nothing to remember."""
        return not (self.holds or self.places)
