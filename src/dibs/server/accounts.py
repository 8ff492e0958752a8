"""What each key has in use at a server, and whether it may have more: the bounds are those of `limits`."""

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dibs.model import Acquire, Release
from dibs.server.api.problems import ApiProblem
from dibs.server.fairness import FairQueue
from dibs.server.limits import Limits

CENSUS_EVERY = 5.0
"""Seconds between two counts of all leases, where they are many: anybody may ask for their number."""

FEW = 10_000
"""So many are counted within a millisecond."""

SWEPT_EVERY = 1.0
"""Seconds between two looks for leases that have ended, of a key that has as many as it may."""

SURELY = 1.0
"""Seconds by which a store may have ended a lease before its tally does."""

MAX_BURY = 120.0
"""Seconds that a tombstone stands at most."""


type Which = tuple[bytes, str]
"""A key and a lease id: one id may hold many keys, and each counts."""


class Tally:
    """What counts, each until its time is over."""

    __slots__ = ("_delays", "_ends", "_swept_at")

    def __init__(self) -> None:
        self._ends: dict[Hashable, float] = {}
        self._delays: dict[Hashable, float] = {}
        """Seconds of that for which units stay taken after the lease: by `lock_delay`, or `keep`."""
        self._swept_at = 0.0
        """When those whose time was over were struck out."""

    def put(self, each: Hashable, end: float, delay: float = 0.0) -> None:
        """One that counts until then, and for its longest `delay` so far."""
        delay = max(delay, self._delays.get(each, 0.0))
        if delay:
            self._delays[each] = delay
        self._ends[each] = end + delay

    def drop(self, each: Hashable) -> float:
        """One that counts no more. Returns its delay."""
        self._ends.pop(each, None)
        return self._delays.pop(each, 0.0)

    def expire(self, each: Hashable) -> None:
        """One that has ended: what has a delay counts on."""
        if each not in self._delays:
            self._ends.pop(each, None)

    def lives(self, each: Hashable, now: float) -> bool:
        """Whether it counts without its delay, and surely does so at the store too."""
        return self._ends.get(each, 0.0) - self._delays.get(each, 0.0) > now + SURELY

    def has_room(self, each: Hashable, most: int, now: float) -> bool:
        """Whether it counts already, or one more may."""
        if len(self._ends) < most or each in self._ends:
            return True
        if now - self._swept_at > SWEPT_EVERY:  # or whoever asks in vain would cost us much
            self._swept_at = now
            self._ends = {each: end for each, end in self._ends.items() if end >= now}
            self._delays = {each: s for each, s in self._delays.items() if each in self._ends}
        return len(self._ends) < most

    def counted(self, now: float) -> int:
        """How many count."""
        return sum(end >= now for end in self._ends.values())

    def __len__(self) -> int:
        """How many have been put in, and not struck out yet."""
        return len(self._ends)


@dataclass(slots=True, eq=False)
class Account:
    """What one key has, at this server."""

    streams: int = 0
    event_streams: int = 0
    waiters: int = 0
    reserved: int = 0
    """Acquires of batches that have not come back from the store."""
    leases: Tally = field(default_factory=Tally)
    """Its leases, each until its units are free if nobody renews it."""
    places: Tally = field(default_factory=Tally)
    """Its places in line, each until nobody believes in it any more."""
    tombstones: Tally = field(default_factory=Tally)
    """Released ids that a store remembers."""
    sign_ins: Tally = field(default_factory=Tally)
    """Its sessions of the dashboard, each for a minute from its beginning."""

    @property
    def is_idle(self) -> bool:
        """There is nothing to remember."""
        counted = (self.streams, self.event_streams, self.waiters, self.reserved)
        return not any((*counted, self.leases, self.places, self.tombstones, self.sign_ins))


class Census(NamedTuple):
    """What all keys have together."""

    leases: int
    """Those that stand."""
    places: int
    """Places in line that live."""


class Accounts:
    """What each key has, and whether it may have more."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.acquiring = FairQueue("acquires", limits.acquires_at_once, limits.acquires_per_key)
        self.renewing = FairQueue("renewals and releases", limits.renewals_at_once)
        self.reading = FairQueue("reads of keys", limits.reads_at_once, limits.reads_per_key)
        self.changing = FairQueue(
            "changes of keys and restrictions", 4 * limits.changes_per_key, limits.changes_per_key
        )
        self.bodies = FairQueue(
            "bytes of bodies", 8 * limits.body_bytes_per_key, limits.body_bytes_per_key
        )
        self.small_bodies = FairQueue("bytes of small bodies", 1 << 60, limits.body_bytes_per_key)
        self.waiting = 0
        """Requests that wait in a queue."""
        self._now = now
        self._each: dict[str, Account] = {}
        self._census = Census(0, 0)
        self._census_good_until = 0.0

    def of(self, key_id: str) -> Account:
        """One key's account."""
        account = self._each.get(key_id)
        if account is None:
            if len(self._each) > 10_000:
                self._each = {key: each for key, each in self._each.items() if not each.is_idle}
            account = self._each[key_id] = Account()
        return account

    def check_lease(self, key_id: str, which: Which) -> None:
        """Raises `ApiProblem`, 429, if a key may have no other lease."""
        account, most = self.of(key_id), self.limits.leases_per_key
        if not account.leases.has_room(which, most - account.reserved, self._now()):
            raise _enough(most, "leases")

    def reserve(self, key_id: str, command: Acquire) -> None:
        """Count what it may get in `reserved`, which the caller takes back. Raises `ApiProblem`, 429."""
        account, most = self.of(key_id), self.limits.waiters_per_key
        which = (command.key, command.id)
        self.check_lease(key_id, which)
        if command.queue and not account.places.has_room(
            which, most - account.reserved, self._now()
        ):
            raise _enough(most, "queue positions")
        account.reserved += 1

    def buried(self, key_id: str, command: Release) -> Release:
        """A release whose tombstone is within bounds: in time, and in number for each key."""
        tombstones, now = self.of(key_id).tombstones, self._now()
        tombstone, which = min(command.tombstone, MAX_BURY), (command.key, command.id)
        if tombstones.has_room(which, self.limits.tombstones_per_key, now):
            tombstones.put(which, now + tombstone)
        else:
            tombstone = 0.0  # a late copy of its Acquire costs this key alone, for one ttl
        return replace(command, tombstone=tombstone)

    def signed_in(self, key_id: str, session: str) -> None:
        """A session begins. Raises `ApiProblem`, 429, if a key has begun too many lately."""
        account, most, now = self.of(key_id), self.limits.sign_ins_per_key, self._now()
        if not account.sign_ins.has_room(session, most, now):
            raise ApiProblem(
                "limit", f"this API key has signed in {most} times within a minute", retry_after=60
            )
        account.sign_ins.put(session, now + 60)

    def leased(self, key_id: str, which: Which, ttl: float, delay: float = 0.0) -> None:
        """A key's lease stands for so long, and its units stay taken for `delay` if it expires."""
        account = self.of(key_id)
        delay = max(delay, account.places.drop(which))
        account.leases.put(which, self._now() + ttl, delay)

    def queued(self, key_id: str, which: Which, waiter_ttl: float, delay: float = 0.0) -> None:
        """A key's place in line lives for so long."""
        self.of(key_id).places.put(which, self._now() + waiter_ttl, delay)

    def ended(self, key_id: str, which: Which) -> None:
        """A lease or a place has ended; what keeps units taken counts on."""
        account = self._each.get(key_id)
        if account is not None:
            account.leases.expire(which)
            account.places.expire(which)

    def released(self, key_id: str, which: Which, keep: float) -> None:
        """A lease or a place was released, or is over already: its units may stay taken."""
        account, now = self.of(key_id), self._now()
        delay = max(keep, account.places.drop(which))
        if account.leases.lives(which, now):
            account.leases.drop(which)
        if delay:
            account.leases.put(which, now, delay)
        else:
            account.leases.expire(which)

    def census(self) -> Census:
        """What all keys have together, as far as this server knows; of many, some seconds ago."""
        now, each = self._now(), self._each.values()
        many = sum(len(one.leases) + len(one.places) for one in each)
        if many <= FEW or now >= self._census_good_until:
            self._census = Census(
                sum(one.leases.counted(now) for one in each),
                sum(one.places.counted(now) for one in each),
            )
            self._census_good_until = now + CENSUS_EVERY
        return self._census

    def one_more(self, key_id: str, what: str) -> ExitStack:
        """Count one more of `streams`, `waiters`, … until it is closed. Raises `ApiProblem`: 429, 503."""
        account = self.of(key_id)
        most: int = getattr(self.limits, f"{what}_per_key")
        if getattr(account, what) >= most:
            raise _enough(most, what.replace("_", " "))
        if what == "waiters" and self.waiting >= self.limits.waiters:
            told = f"the server is already handling {self.waiting} waiting requests"
            raise ApiProblem("overloaded", told, retry_after=1)

        def count(more: int) -> None:
            setattr(account, what, getattr(account, what) + more)
            self.waiting += more if what == "waiters" else 0

        count(1)
        counted = ExitStack()
        counted.callback(count, -1)
        return counted


def _enough(most: int, what: str) -> ApiProblem:
    return ApiProblem(
        "limit", f"this API key has reached its limit of {most} {what}", retry_after=1
    )
