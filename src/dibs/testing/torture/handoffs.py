"""How long it took until the next one had what became free."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf

from dibs.testing.history import Event
from dibs.testing.intervals import Hold, Holds


def handoffs(events: Sequence[Event], quiet: float) -> tuple[list[float], list[float]]:
    """The waits for locks that were free: those that nothing disturbed, and those among faults.

    A wait begins when the last hold has ended (for a dead holder: at its deadline) while somebody
    already waits. It is undisturbed if nobody was killed, paused or resumed since `quiet` seconds
    before.
    """
    disturbed = [event.at for event in events if event.what == "disturbed"]
    calm: list[float] = []
    rough: list[float] = []
    for free_since, granted in _waits(Holds(events)):
        last = bisect_right(disturbed, granted)
        since = disturbed[last - 1] if last else -inf
        (calm if since < free_since - quiet else rough).append(granted - free_since)
    return calm, rough


def _waits(holds: Holds) -> Iterator[tuple[float, float]]:
    for of_key in holds.by_key.values():
        if any(hold.grant.capacity != 1 for hold in of_key):
            continue
        previous: Hold | None = None
        for hold in sorted(of_key, key=lambda hold: hold.start):
            if previous is not None and hold.grant.invoked < previous.end <= hold.start:
                yield previous.end, hold.start
            if previous is None or hold.end > previous.end:
                previous = hold
