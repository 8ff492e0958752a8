"""Did waiters get a free key in time? Answered from a history."""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf

from dibs.testing.checker import Holds, RecordedHold, Violation
from dibs.testing.history import HistoryEvent


class DeadWaiters:
    """Calls that were asked and never ended, by key. The events are sorted by time."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self._asked: defaultdict[str, list[float]] = defaultdict(list)
        self._served: defaultdict[str, list[HistoryEvent]] = defaultdict(list)
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

        A call that was asked before another one that was served by `since` has been passed by then.
        """
        asked = self._asked.get(key)
        if not asked:
            return 0
        served = bisect_right(self._served[key], since, key=lambda event: event.at)
        passed = self._latest[key][served - 1] if served else -inf
        return bisect_right(asked, until) - bisect_right(asked, passed)


def check_liveness(
    events: Sequence[HistoryEvent], bound: float, *, window: float = 0.0
) -> list[Violation]:
    """Find calls that waited longer than `bound` seconds for a key of which nobody held anything.

    The time begins when the call has begun, the last hold has ended (for a killed holder: its
    deadline) and the last disturbance is over; it ends when the call was granted or gave up. Another
    caller's grant in between begins it anew. A call for several keys at once waits for the one that is
    free last. A try that is refused did not wait: it is late where nobody has held the key for so long, nor
    kept it closed. Each call that was asked before and never ended, as its process was killed, may have held
    the queue up for `window` seconds besides.
    """
    disturbed = _disturbances(events)
    holds = Holds(events)
    dead = DeadWaiters(events)
    calls: defaultdict[tuple[int, float], list[tuple[HistoryEvent, float]]] = defaultdict(list)
    for key, ends in _ends_of_waiting(events).items():
        calm = sorted(disturbed[""] + disturbed[key]) if key else disturbed[""]
        for event, free_since in _with_free_since(ends, holds.by_key[key], calm):
            calls[event.process, event.invoked].append((event, free_since))
    return list(_late(calls.values(), bound, dead, window))


def _disturbances(events: Iterable[HistoryEvent]) -> defaultdict[str, list[float]]:
    """Times of disturbances by key. Those of the empty key matter to all."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.what == "disturbed":
            times[event.key].append(event.at)
    return times


def _ends_of_waiting(events: Iterable[HistoryEvent]) -> dict[str, list[HistoryEvent]]:
    ends: defaultdict[str, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        if event.what in ("granted", "gave_up", "refused") and event.invoked > -inf:
            ends[event.key].append(event)
    return ends


def _with_free_since(
    ends: list[HistoryEvent], holds: list[RecordedHold], disturbed: list[float]
) -> Iterator[tuple[HistoryEvent, float]]:
    """Sweep over the ends of waiting with the latest end of any hold that began before."""
    ends.sort(key=lambda event: event.at)
    earlier = iter(sorted(holds, key=lambda hold: hold.start))
    upcoming = next(earlier, None)
    free_since = min(event.invoked for event in ends)  # whatever was before that, nobody saw
    for event in ends:
        while upcoming is not None and upcoming.start < event.at:
            closed_until = upcoming.start + upcoming.grant.min_hold
            free_since = max(free_since, upcoming.end, closed_until)
            upcoming = next(earlier, None)
        calm = bisect_right(disturbed, event.at)
        calm_since = disturbed[calm - 1] if calm else -inf
        yield event, max(free_since, calm_since)


def _late(
    calls: Iterable[list[tuple[HistoryEvent, float]]],
    bound: float,
    dead: DeadWaiters,
    window: float,
) -> Iterator[Violation]:
    """Find calls that waited too long although all of their keys were free."""
    for call in calls:
        event, since = max(call, key=lambda each: each[1])
        if event.what != "refused":
            since = max(since, event.invoked)
        lost = window * max(dead.ahead(each.key, since, each.at) for each, _ in call)
        if event.at - since > bound + lost:
            message = (
                f"free since {since:.6f}, and {event.at - since:.3f} s later only {event.what}"
            )
            yield Violation("starved", event.key, message, (event,))
