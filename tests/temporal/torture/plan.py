"""How much is to be tried in which mode, and what follows from it."""

from dataclasses import dataclass
from typing import Literal

from dibs.core.timing import TOMBSTONE_TTL

type Mode = Literal["slot", "fair"]
MODES: tuple[Mode, ...] = ("slot", "fair")

POOLS = {"one": 1, "two": 2, "four": 4}
"""What is contended for, and the slots of each."""
QUEUE = "queue"
"""The task queue of all workers, after the prefix of a trial."""
SLACK = 15.0
"""Seconds that a loaded machine takes on top of what is promised."""
GRACE = 30.0
"""Seconds beyond its lease after which an open permit counts as left behind."""
IDLE = 3.0
"""Seconds without a call after which brokers end here, so that they do so often."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ends after so many cycles and faults, or after `seconds`. Times are in seconds."""

    mode: Mode
    cycles: int = 2000
    faults: int = 100
    seed: int = 1
    workers: int = 3
    """Processes that serve holders, their activities, permits and brokers."""
    crowd: int = 12
    """Holders at a time."""
    plain: int = 2
    """Plain programs in fair mode."""
    hands: int = 3
    """Tasks or threads of each plain program."""
    lease: float = 4.0
    turns: tuple[int, int] = (2, 5)
    """The least and most acquires of a holder."""
    long: float = 0.15
    """The part of work that takes a good part of a lease; the rest is brief."""
    slow: bool = True
    """Some work longer than their lease."""
    seconds: float = 3600.0
    bug: str = ""
    """What is planted: see `bugs`."""
    kinds: tuple[str, ...] = ()
    """The faults, in this order, over and over; drawn unless given: see `faults`."""
    shapes: tuple[str, ...] = ()
    """The shapes of holders; all unless given: see `holders`."""
    calm: float = 4.0
    """The time at the end in which holders come and go, and nobody is disturbed."""
    to_the_end: bool = True
    """See brokers end as well. They remember for a minute who has left them."""

    @property
    def programs(self) -> int:
        """The number of plain programs."""
        return 0 if self.mode == "slot" else self.plain

    @property
    def patience(self) -> float:
        """Seconds after the last holder in which everything closes.

        Permits end with their leases. A program that was killed has left ids that the broker remembers;
        when these are over the broker is still there while it is idle.
        """
        ends = TOMBSTONE_TTL + 2 * IDLE + SLACK if self.to_the_end else 0.0
        return max(self.lease + GRACE, ends)

    @property
    def backoff(self) -> float:
        """The first pause between probes in slot mode; the longest is five times as much."""
        return self.lease / 10

    @property
    def bound(self) -> float:
        """Seconds within which a waiter gets what is free, once nobody is disturbed.

        A dead holder's lease and its permit's grace, the longest back-off, and slack.
        """
        return 2 * self.lease + 5 * self.backoff + SLACK
