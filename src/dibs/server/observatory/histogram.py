"""How long things take: counts in steps that double, so that milliseconds and days have room alike."""

from math import frexp

FIRST = 0.001
"""The first step ends here, in seconds."""

STEPS = 30
"""The last but one ends after six days; the last has no end."""


class Histogram:
    """Counts of durations."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts = [0] * STEPS
        self.total = 0.0
        """Of all of them, in seconds."""
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        seconds = max(seconds, 0.0)
        mantissa, exponent = frexp(seconds / FIRST)
        # a step ends with its bound: what takes just so long is in it
        step = exponent - 1 if mantissa == 0.5 else exponent
        self.counts[min(max(step, 0), STEPS - 1)] += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """So long that part of them takes at most, as far as the steps tell; None if there are none."""
        count = self.count
        if not count:
            return None
        wanted = part * count
        for step, each in enumerate(self.counts):
            wanted -= each
            if wanted <= 0 and each:
                return min(bound(step), self.longest)
        return self.longest


def bound(step: int) -> float:
    """Where a step ends."""
    return FIRST * 2**step if step < STEPS - 1 else float("inf")
