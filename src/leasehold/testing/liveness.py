"""Did those who waited for something free get it in time? Answered from a history."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from leasehold.testing.checker import Violation
from leasehold.testing.history import Event
from leasehold.testing.intervals import Hold, Holds


def check_liveness(events: Sequence[Event], bound: float) -> list[Violation]:
    """Find calls that waited longer than `bound` seconds for a key that nobody held.

    Keys of capacity 1 are looked at. The time begins when the call has begun, the last hold has
    ended (for a killed holder: its deadline) and the last disturbance is over; it ends when the
    call was granted or gave up. Somebody else's grant in between begins it anew.
    """
    holds = Holds(events)
    disturbed = _disturbances(events)
    single = {key for key, grants in holds.grants.items() if all(g.capacity == 1 for g in grants)}
    found: list[Violation] = []
    for key, ends in _ends_of_waiting(events).items():
        if key in single or key not in holds.grants:
            calm = sorted(disturbed[""] + disturbed[key]) if key else disturbed[""]
            found += _late(key, ends, holds.by_key[key], calm, bound)
    return found


def _disturbances(events: Iterable[Event]) -> defaultdict[str, list[float]]:
    """When somebody was disturbed, by the key that it matters to; the empty one: to all."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.what == "disturbed":
            times[event.key].append(event.at)
    return times


def _ends_of_waiting(events: Iterable[Event]) -> dict[str, list[Event]]:
    ends: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.what in ("granted", "gave_up") and event.invoked > -inf:
            ends[event.key].append(event)
    return ends


def _late(
    key: str, ends: list[Event], holds: list[Hold], disturbed: list[float], bound: float
) -> Iterator[Violation]:
    """Sweep over the ends of waiting with the latest end of any hold that began before."""
    earlier = iter(sorted(holds, key=lambda hold: hold.start))
    upcoming = next(earlier, None)
    free_since = -inf
    for event in sorted(ends, key=lambda event: event.at):
        while upcoming is not None and upcoming.start < event.at:
            free_since = max(free_since, upcoming.end)
            upcoming = next(earlier, None)
        calm = bisect_right(disturbed, event.at)
        calm_since = disturbed[calm - 1] if calm else -inf
        since = max(event.invoked, free_since, calm_since)
        if event.at - since > bound:
            message = (
                f"free since {since:.6f}, and {event.at - since:.3f} s later only {event.what}"
            )
            yield Violation("starved", key, message, (event,))
