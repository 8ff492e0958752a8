"""How much is to be tried in which mode, and what follows from it."""

from dataclasses import dataclass
from typing import Literal

type Mode = Literal["slot", "fair", "mixed"]
MODES: tuple[Mode, ...] = ("slot", "fair", "mixed")

POOLS = {"one": 1, "two": 2, "four": 4}
"""What is contended for, and how many slots each has."""
SLACK = 15.0
"""Seconds that a loaded machine takes on top of what is promised."""
GRACE = 30.0
"""Seconds beyond its lease that a permit may stay open before it counts as left behind."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ends once so many cycles are done and so many faults have struck, or after `seconds`."""

    mode: Mode
    cycles: int = 2000
    faults: int = 100
    seed: int = 1
    workers: int = 3
    """Processes, each of which serves the holders, their activities, the permits and the brokers."""
    crowd: int = 12
    """So many holders at a time."""
    lease: float = 4.0
    turns: tuple[int, int] = (2, 5)
    """A holder acquires so often: at least, at most."""
    long: float = 0.15
    """The part of work that takes a good part of a lease; the rest is brief."""
    slow: bool = True
    """Some work longer than their lease, and some run out of time."""
    seconds: float = 3600.0
    bug: str = ""
    """What is planted: see `bugs`."""
    kinds: tuple[str, ...] = ()
    """The faults, in this order, over and over; drawn unless given: see `faults`."""
    share: bool = True
    """Brokers hold the permits of the slots that they grant, as holders of both modes need."""
    carries: bool = True
    """Some holders hand what they hold to their next run."""
    calm: float = 4.0
    """Seconds at the end in which holders come and go, and nobody is disturbed."""

    @property
    def backoff(self) -> float:
        """Between two rounds of probes, in slot mode: from this to five times as much."""
        return self.lease / 10

    @property
    def bound(self) -> float:
        """Seconds within which whoever waits for something free has it, once nobody is disturbed.

        A dead holder's lease and its permit's grace, the longest back-off, and slack.
        """
        return 2 * self.lease + 5 * self.backoff + SLACK
