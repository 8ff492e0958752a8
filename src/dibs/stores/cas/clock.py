"""Expiry of entries in a store that has no clock for us.

There are two ways to know it.

*Observed*: this process has seen an entry without a sign of life for 1.01 times its ttl, on its own clock,
from the moment that the answer came. A written time is not trusted. This is the rule of client-go's leader
election, and holds whatever the clocks of other machines say.

*Dated*: most stores write their own time into each answer (the `Date` header of HTTP). The writer of an
entry stores the latest end that the store's clock can show. A reader waits until the earliest time that it
can show is `skew` seconds past that end. It is a second way to know that an entry is dead, and never
prolongs one. Without it, a process that looks once (cron, `dibs run --wait 0`) would never get a dead
holder's lease, since it has watched for no time at all.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dibs.core.book import Entry, Hold, QueueEntry
from dibs.core.timing import DRIFT

SKEW = 10.0
"""Seconds by which the clocks of a store's servers may differ, or be stepped; the option `skew` of URLs."""

LATE = 1.0
"""Seconds by which an answer may be later than expected: servers' clocks are never quite the same."""

UNDATED = 0.0
"""The `expires` of an entry whose writer did not know the store's time."""

type Mark = tuple[type, int, int]
"""What tells one sign of life from all others of the same id."""


class Time(NamedTuple):
    """The time of one command: the latest that the store's clock may show; without dates, our own clock."""

    now: float
    ahead: float
    """Seconds that `now` is ahead of this process's clock."""
    slack: float | None
    """Seconds after the written end of an entry until it is dead by the dates. None: there are no dates."""
    stamp: int
    """The store's wall clock in microseconds, to begin tokens with; 0 if it was never told.

    It is set even if the dates are not trusted. An idle key is deleted, and its next token, which begins
    with this, must exceed its last one.
    """


class StoreClock:
    """The store's clock, as far as this process knows it: bounds of its difference to our own.

    They narrow with every answer, and widen with time, since clocks may run apart by `DRIFT`. Where servers
    have clocks of their own, they are as wide as two of their answers ever contradicted each other.
    """

    def __init__(self, skew: float = SKEW) -> None:
        self.skew: float = skew
        self.disagreement: float = 0.0
        """Seconds by which two answers contradicted each other at most: servers' clocks that differ."""
        self._low = self._high = self._at = 0.0
        self._highest_low = self._lowest_high = 0.0
        """Of all answers: the difference was at least the one, and at most the other."""
        self._known = False
        self._date = 0.0
        """The latest date of an answer."""

    def note(self, date: float, resolution: float, sent: float, heard: float) -> None:
        """An answer had this date: seconds since 1970, rounded down to `resolution`.

        The request was sent and its answer heard at these times of our own clock.
        """
        self._date = max(self._date, date)
        low = date - heard
        high = date + resolution - sent + DRIFT * (heard - sent)
        if not self._known:
            self._highest_low, self._lowest_high = low, high
        else:
            grown = DRIFT * (heard - self._at)
            self._highest_low = max(self._highest_low - grown, low)
            self._lowest_high = min(self._lowest_high + grown, high)
            apart = max(self._highest_low - high, low - self._lowest_high)
            self.disagreement = max(self.disagreement, apart)
            old_low, old_high = self._low - grown, self._high + grown
            if old_low <= high and low <= old_high:
                low, high = max(low, old_low), min(high, old_high)
        self._low, self._high, self._at, self._known = low, high, heard, True

    def was_later(self, time: Time, now: float) -> bool:
        """Whether an answer by `now` had a later date than can be, if `time` was the latest at its moment.

        Then our own clock has stood still meanwhile, as in a virtual machine that was paused, or the store's
        was stepped.
        """
        if time.slack is None:
            return False
        since = now - (time.now - time.ahead)
        return self._date > time.now + (1 + DRIFT) * since + LATE

    @property
    def is_dated(self) -> bool:
        """Whether the store's dates are known, and agree within `skew`."""
        return self._known and self.disagreement <= self.skew

    def time(self, now: float) -> Time:
        """The time at `now` of our own clock."""
        stamp = int((now + self._low) * 1e6) if self._known else 0
        if not self.is_dated:
            return Time(now, 0.0, None, stamp)
        grown = DRIFT * max(now - self._at, 0.0) + self.disagreement
        low, high = self._low - grown, self._high + grown
        return Time(now + high, high, self.skew + high - low, stamp)


class Sightings:
    """The first time that this process saw each entry's present sign of life, for one key."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Mark, float]] = {}

    def view(self, time: Time) -> Callable[[Entry], float]:
        """Return `expires_at` for a book that was loaded by `time`; what is new to us is seen then."""
        seen, ahead, slack, now = self._seen, time.ahead, time.slack, time.now - time.ahead

        def expires_at(entry: Entry) -> float:
            known, mark = seen.get(entry.id), mark_of(entry)
            if known is None or known[0] != mark:
                known = seen[entry.id] = (mark, now)
            observed = known[1] + ahead + (1 + DRIFT) * entry.ttl
            if slack is None or entry.expires == UNDATED:
                return observed
            return min(observed, entry.expires + slack)

        return expires_at

    def of(self, entries: Iterable[Entry]) -> "Sightings":
        """A copy with no more than these entries, which were seen."""
        other, seen = Sightings(), self._seen
        other._seen = {entry.id: seen[entry.id] for entry in entries}
        return other

    def is_changed(self, entry: Entry) -> bool:
        """Whether an entry is not as it was seen last."""
        known = self._seen.get(entry.id)
        return known is None or known[0] != mark_of(entry)


def mark_of(entry: Entry) -> Mark:
    """The identity of one sign of life: the kind, the token or arrival, and the beat.

    The beat alone begins anew if an id that had ended is acquired again.
    """
    life = 0
    if isinstance(entry, Hold):
        life = entry.token
    elif isinstance(entry, QueueEntry):
        life = entry.arrival
    return type(entry), life, entry.beat
