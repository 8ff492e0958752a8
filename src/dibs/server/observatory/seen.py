"""What a picture has of one key."""

from dibs.model import Holder, Waiter
from dibs.server.observatory.families import Family


class Hold:
    """A hold, as it was seen last. Times are of this machine's clock, which only runs forwards."""

    __slots__ = (
        "ends",
        "fresh",
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
        self.fresh = since
        """When it was granted, or renewed last."""
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

    __slots__ = ("changed", "family", "holds", "key", "places", "walk")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.family: Family | None = None
        """Once it has counted anything of this key: only so many are told apart, and most keys are idle."""
        self.holds: dict[str, Hold] = {}
        """By the fingerprints of their leases' ids."""
        self.places: dict[str, Place] = {}
        self.changed = float("-inf")
        """When a command's answer changed it: a look that began before is older than that."""
        self.walk = 0
        """The last walk through the store that has found it."""

    @property
    def is_idle(self) -> bool:
        """There is nothing to remember."""
        return not (self.holds or self.places)
