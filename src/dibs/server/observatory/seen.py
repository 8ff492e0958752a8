"""What a picture has of one key."""

from dibs.model import Holder, Waiter


class Hold:
    """A hold, as it was seen last. Times are of this machine's clock, which only runs forwards."""

    __slots__ = (
        "ends",
        "note",
        "owner",
        "renewals",
        "revoked",
        "since",
        "slots",
        "token",
        "ttl",
        "units",
    )

    def __init__(
        self, owner: str, note: str, token: int, units: int, slots: tuple[int, ...], since: float
    ) -> None:
        self.owner = owner
        self.note = note
        self.token = token
        self.units = units
        self.slots = slots
        self.since = since
        self.ends = since
        """When it ends, unless it is renewed."""
        self.ttl = 0.0
        """0 where it is not known."""
        self.renewals = 0
        self.revoked = False

    @classmethod
    def of(cls, holder: Holder, now: float) -> "Hold":
        """What a look has found."""
        since = now - holder.held_for
        found = cls(holder.owner, holder.note, holder.token, holder.units, holder.slots, since)
        found.ends = now + holder.expires_in
        found.revoked = holder.state == "revoked"
        return found


class Place:
    """A place in line, as it was seen last."""

    __slots__ = ("note", "owner", "since", "units")

    def __init__(self, owner: str, note: str, units: int, since: float) -> None:
        self.owner = owner
        self.note = note
        self.units = units
        self.since = since

    @classmethod
    def of(cls, waiter: Waiter, now: float) -> "Place":
        """What a look has found."""
        return cls(waiter.owner, waiter.note, waiter.units, now - waiter.waited)


class Seen:
    """A key in use."""

    __slots__ = (
        "capacity",
        "changed",
        "ended",
        "holds",
        "key",
        "newest",
        "places",
        "slots",
        "units",
        "walk",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.holds: dict[str, Hold] = {}
        """By the fingerprints of their leases' ids."""
        self.places: dict[str, Place] = {}
        self.slots: dict[int, str] = {}
        """Which of them has a slot."""
        self.units = 0
        """How many units they have together."""
        self.capacity = 0
        """The newest capacity; 0 if it is not known."""
        self.ended: dict[int, float] = {}
        """When each slot's last hold ended, as far as that was told."""
        self.newest = 0
        """The newest token."""
        self.changed = float("-inf")
        """When a command's answer changed it: a look that began before is older than that."""
        self.walk = 0
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

    def resize(self, lease: str, units: int, slots: tuple[int, ...]) -> None:
        """Give a hold that many units."""
        hold = self.take(lease)
        hold.units, hold.slots = units, slots
        self.put(lease, hold)

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
