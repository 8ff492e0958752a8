"""What a `FaultProxy` does to its connections now, and what it has counted."""

import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

type Direction = Literal["to_server", "to_client"]


@dataclass(eq=False, slots=True)
class Reset:
    """An order to reset the first `times` connections that carry `count` bytes in a direction."""

    count: int
    direction: Direction
    times: int


@dataclass(slots=True)
class Rules:
    """The faults in force."""

    swallow: set[Direction] = field(default_factory=set[Direction])
    delays: dict[Direction, tuple[float, float]] = field(
        default_factory=dict[Direction, tuple[float, float]]
    )
    rate: float = math.inf
    reset: Reset | None = None

    def clear(self) -> None:
        """No faults any more."""
        self.swallow.clear()
        self.delays.clear()
        self.rate = math.inf
        self.reset = None


@dataclass(slots=True)
class Counts:
    """What went through; `changed` is notified of every change."""

    accepted: int = 0
    resets: int = 0
    passed: Counter[Direction] = field(default_factory=Counter[Direction])
    swallowed: Counter[Direction] = field(default_factory=Counter[Direction])
    changed: threading.Condition = field(default_factory=threading.Condition)
