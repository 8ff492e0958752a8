"""The latest events, numbered: whoever was away for a moment goes on where it was."""

from collections import deque
from itertools import islice

from dibs.server.observatory.events import Event

MOST = 16_384
"""So many events are remembered."""

AT_ONCE = 500
"""So many are looked through at a time, for one who follows them."""


class Ring:
    """See the module. Who reads it keeps the number of the last event that it has read."""

    def __init__(self, most: int = MOST) -> None:
        self._events: deque[Event] = deque(maxlen=most)
        self.last = 0
        """The number of the latest event; 0 before the first."""

    def add(self, event: Event) -> None:
        """One more; the oldest is forgotten."""
        self.last += 1
        self._events.append(event)

    @property
    def forgotten(self) -> int:
        """The number of the latest event that is forgotten; 0 before that."""
        return self.last - len(self._events)

    def has_after(self, number: int) -> bool:
        """Whether nothing that came after that one is forgotten."""
        return self.forgotten <= number <= self.last

    def after(self, number: int, most: int) -> list[Event]:
        """The next ones after that number, without a gap, if `has_after` it."""
        missing = self.last - number
        begin = len(self._events) - missing
        if begin + most < missing:  # it is nearer from the left
            return list(islice(self._events, begin, begin + most))
        newest_first = islice(reversed(self._events), max(missing - most, 0), missing)
        return list(newest_first)[::-1]
