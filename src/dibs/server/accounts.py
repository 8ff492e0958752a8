"""What each key has in use at a server, and whether it may have more: the bounds are those of `limits`."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

from dibs.model import Release
from dibs.server.fairness import FairQueue
from dibs.server.limits import Limits
from dibs.server.problems import Problem

CENSUS_EVERY = 5.0
"""Seconds between two counts of all leases, where they are many: anybody may ask for their number."""

FEW = 10_000
"""So many are counted within a millisecond."""

SWEPT_EVERY = 1.0
"""Seconds between two looks for leases that have ended, of a key that has as many as it may."""


MAX_BURY = 120.0
"""Seconds that a tombstone stands at most."""


class Budget:
    """How many of one sort may be under way at a time."""

    __slots__ = ("_most", "_what", "busy")

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self.busy = 0

    def __enter__(self) -> None:
        """One more. Raises `Problem`, 503, if there is no room."""
        if self.busy >= self._most:
            raise Problem(
                "overloaded",
                f"the server is already handling {self.busy} {self._what}",
                retry_after=1,
            )
        self.busy += 1

    def __exit__(self, *_: object) -> None:
        self.busy -= 1


type Which = tuple[bytes, str]
"""A key and a lease id: one id may hold many keys, and each counts."""


class Tally:
    """What counts, each until its time is over."""

    __slots__ = ("_ends", "_swept_at")

    def __init__(self) -> None:
        self._ends: dict[Hashable, float] = {}
        self._swept_at = 0.0
        """When those whose time was over were struck out."""

    def put(self, each: Hashable, end: float) -> None:
        """One that counts until then."""
        self._ends[each] = end

    def drop(self, each: Hashable) -> None:
        """One that counts no more."""
        self._ends.pop(each, None)

    def has_room(self, each: Hashable, most: int, now: float) -> bool:
        """Whether it counts already, or one more may."""
        if len(self._ends) < most or each in self._ends:
            return True
        if now - self._swept_at > SWEPT_EVERY:  # or whoever asks in vain would cost us much
            self._swept_at = now
            self._ends = {each: end for each, end in self._ends.items() if end >= now}
        return len(self._ends) < most

    def counted(self, now: float) -> int:
        """How many count."""
        return sum(end >= now for end in self._ends.values())

    def __len__(self) -> int:
        """How many have been put in, and not struck out yet."""
        return len(self._ends)


class Account:
    """What one key has, at this server."""

    __slots__ = (
        "event_streams",
        "leases",
        "places",
        "sign_ins",
        "streams",
        "tombstones",
        "waiters",
    )

    def __init__(self) -> None:
        self.streams = 0
        self.event_streams = 0
        self.waiters = 0
        self.leases = Tally()
        """Its leases, each until it ends if nobody renews it."""
        self.places = Tally()
        """Its places in line, each until nobody believes in it any more."""
        self.tombstones = Tally()
        """Released ids that a store remembers."""
        self.sign_ins = Tally()
        """Its sessions of the dashboard, each for a minute from its beginning."""

    @property
    def is_idle(self) -> bool:
        """There is nothing to remember."""
        counted = (self.streams, self.event_streams, self.waiters)
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
        self.waiting = Budget(limits.waiters, "waiting requests")
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
        """Raises `Problem`, 429, if a key may have no other lease."""
        account, most = self._each.get(key_id), self.limits.leases_per_key
        if account is not None and not account.leases.has_room(which, most, self._now()):
            raise _enough(most, "leases")

    def check_place(self, key_id: str, which: Which) -> None:
        """Raises `Problem`, 429, if a key may have no other place in line."""
        account, most = self._each.get(key_id), self.limits.waiters_per_key
        if account is not None and not account.places.has_room(which, most, self._now()):
            raise _enough(most, "queue positions")

    def buried(self, key_id: str, command: Release) -> Release:
        """A release whose tombstone is within bounds: in time, and in number for each key."""
        tombstones, now = self.of(key_id).tombstones, self._now()
        bury, which = min(command.bury, MAX_BURY), (command.key, command.id)
        if tombstones.has_room(which, self.limits.tombstones_per_key, now):
            tombstones.put(which, now + bury)
        else:
            bury = 0.0  # a late copy of its Acquire costs this key alone, for one ttl
        return replace(command, bury=bury)

    def signed_in(self, key_id: str, session: str) -> None:
        """A session begins. Raises `Problem`, 429, if a key has begun too many lately."""
        account, most, now = self.of(key_id), self.limits.sign_ins_per_key, self._now()
        if not account.sign_ins.has_room(session, most, now):
            raise Problem(
                "limit", f"this API key has signed in {most} times within a minute", retry_after=60
            )
        account.sign_ins.put(session, now + 60)

    def leased(self, key_id: str, which: Which, ttl: float) -> None:
        """A key's lease stands for so long."""
        account = self.of(key_id)
        account.leases.put(which, self._now() + ttl)
        account.places.drop(which)

    def queued(self, key_id: str, which: Which, patience: float) -> None:
        """A key's place in line lives for so long."""
        self.of(key_id).places.put(which, self._now() + patience)

    def ended(self, key_id: str, which: Which) -> None:
        """A lease or a place has ended."""
        account = self._each.get(key_id)
        if account is not None:
            account.leases.drop(which)
            account.places.drop(which)

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

    def one_more(self, key_id: str, what: str) -> "Counted":
        """Room for one more of what is counted: `streams`, `waiters`, … Raises `Problem`, 429."""
        account = self.of(key_id)
        most: int = getattr(self.limits, f"{what}_per_key")
        if getattr(account, what) >= most:
            raise _enough(most, what.replace("_", " "))
        return Counted(account, what)


class Counted:
    """One that counts, until `end`."""

    __slots__ = ("_account", "_what")

    def __init__(self, account: Account, what: str) -> None:
        self._account: Account | None = account
        self._what = what
        setattr(account, what, getattr(account, what) + 1)

    def end(self) -> None:
        """It counts no more. May be called again."""
        account, self._account = self._account, None
        if account is not None:
            setattr(account, self._what, getattr(account, self._what) - 1)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.end()


def _enough(most: int, what: str) -> Problem:
    return Problem("limit", f"this API key has reached its limit of {most} {what}", retry_after=1)
