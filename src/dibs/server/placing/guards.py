"""Guards: holds of our own that keep a key taken at the place that it has left.

A guard takes all units of a key, so there is one only where nothing else stands and nobody waits. While it
stands nobody is granted anything there, whoever asks and however late: not a server that has not heard of
the move, and no copy of a command that was long on its way.
"""

from collections.abc import Iterable
from hashlib import blake2b

from dibs.core.names import fingerprint
from dibs.model import MANY, Acquire, Holder

_OWNER = "moving to "

STANDS = 600.0
"""A guard's ttl in seconds: far longer than any place in line and any copy of a command lives."""


class Guards:
    """The guards of one service: their ids follow from its secret, so every server has the same."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret[:64]

    def id_of(self, key: bytes, epoch: int, part: str) -> str:
        """The id of a guard of a key that moves for the time `epoch`; `part`: `guard` or `wall`."""
        about = b"%d %b %b" % (epoch, part.encode(), key)
        return blake2b(about, key=self._secret, digest_size=18).hexdigest()

    def guard(self, key: bytes, epoch: int, capacity: int, to: str) -> Acquire:
        """Takes all units that there are, if all are free and nobody waits."""
        return self._acquire(key, epoch, "guard", capacity, capacity, to)

    def wall(self, key: bytes, epoch: int, capacity: int, to: str) -> Acquire:
        """Behind the guard of a semaphore: whatever capacity is declared later, nothing is free."""
        return self._acquire(key, epoch, "wall", MANY - capacity, MANY, to)

    def _acquire(
        self, key: bytes, epoch: int, part: str, units: int, capacity: int, to: str
    ) -> Acquire:
        guard_id, owner = self.id_of(key, epoch, part), f"{_OWNER}{to}"
        return Acquire(key, guard_id, owner, STANDS, units, capacity)

    def leases(self, key: bytes, epoch: int) -> frozenset[str]:
        """What the guards of a key are called in public."""
        return frozenset(fingerprint(self.id_of(key, epoch, each)) for each in ("guard", "wall"))

    def others(self, key: bytes, epoch: int, holders: Iterable[Holder]) -> tuple[Holder, ...]:
        """The holders that are no guards of that time."""
        ours = self.leases(key, epoch)
        return tuple(each for each in holders if each.lease not in ours)


def may_be_guarded(holders: Iterable[Holder]) -> bool:
    """Whether a guard is among them, of whatever move; or somebody who calls himself so."""
    return any(each.owner.startswith(_OWNER) for each in holders)
