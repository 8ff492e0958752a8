"""What one process of the torture sees of the leases that its activities work under."""

from dataclasses import dataclass

from dibs.clock import BootClock
from dibs.testing.recorder import RecordedLease as Held
from dibs.testing.recorder import Recorder

_CLOCK = BootClock()


def boot_time(wall: float) -> float:
    """When that was (or will be) on the machine's boot clock, by the wall's of this moment."""
    return _CLOCK.now() + wall - _CLOCK.stamp() / 1e6


@dataclass(eq=False, slots=True, weakref_slot=True)
class Claim:
    """A permit, as an activity was told of it: what a recorder and a fenced file want of a lease."""

    name: str
    key: bytes
    token: int
    slots: tuple[int, ...]
    until: float
    """On the boot clock."""

    @property
    def remaining(self) -> float:
        return max(0.0, self.until - _CLOCK.now())


class Diary(Recorder):
    """A recorder that calls leases as their holders do: a lease is seen by several processes."""

    def name_of(self, lease: Held) -> str:
        assert isinstance(lease, Claim)
        return lease.name
