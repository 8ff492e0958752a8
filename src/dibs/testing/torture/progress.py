"""How far a torture has come."""

from dataclasses import dataclass
from typing import Literal

type Doing = Literal["starting", "faults", "calm", "checking", "cleaning up"]


@dataclass(frozen=True, slots=True)
class TortureProgress:
    """A glance at a torture under way."""

    doing: Doing
    seconds: float
    """Since it began."""
    of: float
    """So many will it take; guessed, where it is to end after so many cycles."""
    cycles: int
    kills: int
    pauses: int
    struck: int
    """Faults that struck a holder."""
