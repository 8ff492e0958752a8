"""When each lease needs a look: buckets of leases that are due at about the same time.

Most leases are released long before their first renewal, so putting one in and taking it out again is
what must be cheap: one dict operation each, with no lock and no timer of its own.
"""

from collections.abc import Callable
from math import frexp, ldexp
from weakref import ref

from dibs.runtime.port import EARLY, Watched
from dibs.runtime.timers import Timers

FINEST = 0.016
"""A look that is due sooner than this is due exactly then, in seconds."""

type Bucket = dict[int, ref[Watched]]


class Timetable:
    """Leases by the time of their next look; they are held weakly."""

    def __init__(self, timers: Timers, due: Callable[[list[Watched]], None]) -> None:
        self._timers = timers
        self._due = due
        self._buckets: dict[float, Bucket] = {}
        self._grains: dict[float, float] = {}

    def add(self, lease: Watched, when: float, lead: float) -> None:
        """Look at `lease` at `when`, or by up to `EARLY` of `lead` earlier."""
        grain = self._grains.get(lead) or self._grain(lead)
        slot = when - when % grain if grain else when
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._new_bucket(slot)
        if lease._bucket is not None:
            lease._bucket.pop(id(lease), None)
        lease._bucket = bucket
        bucket[id(lease)] = ref(lease)
        if self._buckets.get(slot) is not bucket:
            self._empty(bucket)  # it rang meanwhile: this process was paused for long, just here

    def discard(self, lease: Watched) -> None:
        """Look at it no more."""
        if lease._bucket is not None:
            lease._bucket.pop(id(lease), None)
            lease._bucket = None

    def leases(self) -> list[Watched]:
        """All leases that are still wanted."""
        found = []
        for bucket in list(self._buckets.values()):
            for reference in list(bucket.values()):
                lease = reference()
                if lease is not None:
                    found.append(lease)
        return found

    def _grain(self, lead: float) -> float:
        """A power of two, so that leases of like ttls share buckets; 0 where the time is exact."""
        if lead < FINEST:
            return 0.0
        if len(self._grains) > 256:
            self._grains.clear()
        grain = self._grains[lead] = ldexp(1.0, frexp(lead * EARLY)[1] - 1)
        return grain

    def _new_bucket(self, slot: float) -> Bucket:
        bucket: Bucket = {}
        if self._buckets.setdefault(slot, bucket) is bucket:
            self._timers.at(slot, lambda: self._ring(slot))
        return self._buckets.get(slot, bucket)

    def _ring(self, slot: float) -> None:
        self._empty(self._buckets.pop(slot, {}))

    def _empty(self, bucket: Bucket) -> None:
        due = []
        for number in list(bucket):
            reference = bucket.pop(number, None)
            lease = None if reference is None else reference()
            if lease is not None and lease._bucket is bucket:
                lease._bucket = None
                due.append(lease)
        if due:
            self._due(due)
