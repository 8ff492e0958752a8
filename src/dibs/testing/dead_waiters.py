"""Who was killed while waiting in line, and may have held up those behind, answered from a history."""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from math import inf

from dibs.testing.history import Event


class DeadWaiters:
    """Calls that were asked and never ended, by key. The events are sorted by time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._asked: defaultdict[str, list[float]] = defaultdict(list)
        self._served: defaultdict[str, list[Event]] = defaultdict(list)
        asked = set[tuple[int, str, float]]()
        for event in events:
            if event.what == "asked" and not event.resource:
                asked.add((event.process, event.key, event.at))
            elif event.what in ("granted", "gave_up", "refused"):
                asked.discard((event.process, event.key, event.invoked))
            if event.what == "granted" and event.invoked > -inf:
                self._served[event.key].append(event)
        for _, key, at in asked:
            insort(self._asked[key], at)
        self._latest = {
            key: list(accumulate((event.invoked for event in served), max))
            for key, served in self._served.items()
        }
        """When the youngest call was asked that had been served by then."""

    def ahead(self, key: str, since: float, until: float) -> int:
        """How many may have come to the head of a key's line in that time.

        Who asked before somebody that was served by `since` has been passed by then.
        """
        asked = self._asked.get(key)
        if not asked:
            return 0
        served = bisect_right(self._served[key], since, key=lambda event: event.at)
        passed = self._latest[key][served - 1] if served else -inf
        return bisect_right(asked, until) - bisect_right(asked, passed)
