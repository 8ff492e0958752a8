"""When to try for a stream again: after pauses that grow, and that differ from client to client.

Those that one server has left behind should not all come to the next at once.
"""

import random
import time

SPREAD = 0.3
MOST_SPREAD = 5.0
"""Within so many seconds they come: at first, and where nobody lets them in."""


class Spread:
    """One client's pauses."""

    def __init__(self) -> None:
        self._failures = 0
        self._due = 0.0

    def put_off(self) -> None:
        """It has failed once more, or has just broken."""
        longest = min(SPREAD * 2**self._failures, MOST_SPREAD)
        self._due = time.monotonic() + random.uniform(0, longest)  # noqa: S311  # nobody gains by a guess
        self._failures = min(self._failures + 1, 8)

    def succeed(self) -> None:
        """There is a stream."""
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds until it is time; 0 if it is."""
        return max(self._due - time.monotonic(), 0.0)
