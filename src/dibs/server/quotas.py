"""Usage of each API key at a server, and fair turns between keys. `limits` has the bounds."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from dibs.model import Acquire, Release
from dibs.server.api.problems import ApiProblem
from dibs.server.limits import Limits

CENSUS_EVERY = 5.0
"""Seconds between two counts of many leases, as `/metrics` needs no authentication."""

FEW = 10_000
"""Below this size the exact count is computed on every request."""

SWEPT_EVERY = 1.0
"""Seconds between two sweeps of ended leases, for a key that has reached its limit."""

SURELY = 1.0
"""Seconds by which a store may end a lease earlier than this count."""

MAX_TOMBSTONE = 120.0
"""Seconds of the longest tombstone."""

TURN_TIMEOUT = 5.0
"""Seconds that work may wait for its turn."""

MIXED_TURN_TIMEOUT = 0.5
"""Seconds that a batch may wait for its turn if renewals or releases are in it."""


type LeaseKey = tuple[bytes, str]
"""A key and a lease id: one id may hold many keys, and each counts."""


class ExpiringSet:
    """Entries that count, each until its time is over."""

    __slots__ = ("_entries", "_swept_at")

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[float, float]] = {}
        """Until when each counts, and how many seconds of that are the delay after its lease."""
        self._swept_at = 0.0
        """When those whose time was over were removed."""

    def put(self, each: Hashable, end: float, delay: float = 0.0) -> None:
        """Count one until `end`, and then for the longest `delay` that it had so far."""
        old = self._entries.get(each)
        if old is not None and old[1] > delay:
            delay = old[1]
        self._entries[each] = (end + delay, delay)

    def drop(self, each: Hashable) -> float:
        """Count one no more. Returns its delay."""
        return self._entries.pop(each, _NEVER)[1]

    def expire(self, each: Hashable) -> None:
        """Count one no more, unless it has a delay."""
        if not self._entries.get(each, _NEVER)[1]:
            self._entries.pop(each, None)

    def lives(self, each: Hashable, now: float) -> bool:
        """Whether its lease, without the delay, has more than `SURELY` left."""
        end, delay = self._entries.get(each, _NEVER)
        return end - delay > now + SURELY

    def has_room(self, each: Hashable, most: int, now: float) -> bool:
        """Whether it counts already, or there is room for one more."""
        if len(self._entries) < most or each in self._entries:
            return True
        if now - self._swept_at > SWEPT_EVERY:  # else each refused request would cost a sweep
            self._swept_at = now
            self._entries = {
                each: until for each, until in self._entries.items() if until[0] >= now
            }
        return len(self._entries) < most

    def counted(self, now: float) -> int:
        """How many count."""
        return sum(end >= now for end, _ in self._entries.values())

    def __len__(self) -> int:
        """How many were put in and not removed yet."""
        return len(self._entries)


_NEVER = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class KeyUsage:
    """Usage of one API key at this server."""

    streams: int = 0
    event_streams: int = 0
    waiters: int = 0
    reserved: int = 0
    """Acquires of batches that have not come back from the store."""
    leases: ExpiringSet = field(default_factory=ExpiringSet)
    """Its leases, each until its units are free without a renewal."""
    positions: ExpiringSet = field(default_factory=ExpiringSet)
    """Its queue positions, each until its waiter ttl ends."""
    tombstones: ExpiringSet = field(default_factory=ExpiringSet)
    """Released ids that a store remembers."""
    sign_ins: ExpiringSet = field(default_factory=ExpiringSet)
    """Its sessions of the dashboard, each for a minute from its beginning."""

    @property
    def is_idle(self) -> bool:
        """There is nothing to remember."""
        counted = (self.streams, self.event_streams, self.waiters, self.reserved)
        return not any((*counted, self.leases, self.positions, self.tombstones, self.sign_ins))


class Census(NamedTuple):
    """Sums over all API keys."""

    leases: int
    """Unexpired leases."""
    waiters: int
    """Queue positions within their waiter ttl."""


class Quotas:
    """Counts the usage of each API key, and refuses more than its limits."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits: Limits = limits
        self.acquiring: FairQueue = FairQueue(
            "acquires", limits.acquires_at_once, limits.acquires_per_key
        )
        self.renewing: FairQueue = FairQueue("renewals and releases", limits.renewals_at_once)
        self.reading: FairQueue = FairQueue(
            "reads of keys", limits.reads_at_once, limits.reads_per_key
        )
        self.changing: FairQueue = FairQueue(
            "changes of keys and restrictions", 4 * limits.changes_per_key, limits.changes_per_key
        )
        self.bodies: FairQueue = FairQueue(
            "bytes of bodies", 8 * limits.body_bytes_per_key, limits.body_bytes_per_key
        )
        self.small_bodies: FairQueue = FairQueue(
            "bytes of small bodies", 1 << 60, limits.body_bytes_per_key
        )
        self.waiting: int = 0
        """Requests that wait in a queue."""
        self._now = now
        self._each: dict[str, KeyUsage] = {}
        self._census = Census(0, 0)
        self._census_good_until = 0.0

    def of(self, key_id: str) -> KeyUsage:
        """The usage of one key."""
        usage = self._each.get(key_id)
        if usage is None:
            if len(self._each) > 10_000:
                self._each = {key: each for key, each in self._each.items() if not each.is_idle}
            usage = self._each[key_id] = KeyUsage()
        return usage

    def check_lease(self, key_id: str, which: LeaseKey) -> None:
        """Raises `ApiProblem`, 429, if a key has as many leases as it may have."""
        usage, most = self.of(key_id), self.limits.leases_per_key
        if not usage.leases.has_room(which, most - usage.reserved, self._now()):
            raise _enough(most, "leases")

    def reserve(self, key_id: str, command: Acquire) -> None:
        """Count an acquire in `reserved`, until the caller subtracts it. Raises `ApiProblem`, 429."""
        usage, most = self.of(key_id), self.limits.waiters_per_key
        which = (command.key, command.id)
        self.check_lease(key_id, which)
        if command.queue and not usage.positions.has_room(
            which, most - usage.reserved, self._now()
        ):
            raise _enough(most, "queue positions")
        usage.reserved += 1

    def limit_tombstone(self, key_id: str, command: Release) -> Release:
        """A release whose tombstone is within bounds: in time, and in number for each key."""
        tombstones, now = self.of(key_id).tombstones, self._now()
        tombstone, which = min(command.tombstone, MAX_TOMBSTONE), (command.key, command.id)
        if tombstones.has_room(which, self.limits.tombstones_per_key, now):
            tombstones.put(which, now + tombstone)
        else:
            tombstone = 0.0  # a late copy of its Acquire costs this key alone, for one ttl
        return command if tombstone == command.tombstone else replace(command, tombstone=tombstone)

    def signed_in(self, key_id: str, session: str) -> None:
        """Count a new session. Raises `ApiProblem`, 429, if a key has begun too many lately."""
        usage, most, now = self.of(key_id), self.limits.sign_ins_per_key, self._now()
        if not usage.sign_ins.has_room(session, most, now):
            raise ApiProblem(
                "limit", f"this API key has signed in {most} times within a minute", retry_after=60
            )
        usage.sign_ins.put(session, now + 60)

    def leased(self, key_id: str, which: LeaseKey, ttl: float, delay: float = 0.0) -> None:
        """Count a lease for `ttl` seconds. If it expires, its units stay taken for `delay` more."""
        usage = self.of(key_id)
        delay = max(delay, usage.positions.drop(which))
        usage.leases.put(which, self._now() + ttl, delay)

    def queued(self, key_id: str, which: LeaseKey, waiter_ttl: float, delay: float = 0.0) -> None:
        """Count a queue position until its waiter ttl ends."""
        self.of(key_id).positions.put(which, self._now() + waiter_ttl, delay)

    def ended(self, key_id: str, which: LeaseKey) -> None:
        """A lease or a queue position has ended. Units that stay taken still count."""
        usage = self._each.get(key_id)
        if usage is not None:
            usage.leases.expire(which)
            usage.positions.expire(which)

    def released(self, key_id: str, which: LeaseKey, keep: float) -> None:
        """A lease or a queue position was released, or has ended already. Its units may stay taken."""
        usage, now = self.of(key_id), self._now()
        delay = max(keep, usage.positions.drop(which))
        if usage.leases.lives(which, now):
            usage.leases.drop(which)
        elif not delay:
            usage.leases.expire(which)
        if delay:
            usage.leases.put(which, now, delay)

    def census(self) -> Census:
        """Sums over all keys at this server. If there are many leases, they are some seconds old."""
        now, each = self._now(), self._each.values()
        many = sum(len(one.leases) + len(one.positions) for one in each)
        if many <= FEW or now >= self._census_good_until:
            self._census = Census(
                sum(one.leases.counted(now) for one in each),
                sum(one.positions.counted(now) for one in each),
            )
            self._census_good_until = now + CENSUS_EVERY
        return self._census

    def one_more(self, key_id: str, what: str) -> ExitStack:
        """Count one more of `streams`, `waiters`, … until it is closed. Raises `ApiProblem`: 429, 503."""
        usage = self.of(key_id)
        most: int = getattr(self.limits, f"{what}_per_key")
        if getattr(usage, what) >= most:
            raise _enough(most, what.replace("_", " "))
        if what == "waiters" and self.waiting >= self.limits.waiters:
            detail = f"the server is already handling {self.waiting} waiting requests"
            raise ApiProblem("overloaded", detail, retry_after=1)

        def count(more: int) -> None:
            setattr(usage, what, getattr(usage, what) + more)
            self.waiting += more if what == "waiters" else 0

        count(1)
        counted = ExitStack()
        counted.callback(count, -1)
        return counted


def _enough(most: int, what: str) -> ApiProblem:
    return ApiProblem(
        "limit", f"this API key has reached its limit of {most} {what}", retry_after=1
    )


# -- turns ------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Share:
    """Work of one API key: cost under way, cost in total, and the work that waits."""

    busy: int = 0
    total: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class FairQueue:
    """Capacity for work of one sort. The cost of work is the number of commands, items or bytes.

    Work starts while less than `most` is under way. One key has at most a quarter of `most` under way; work
    that costs more counts as a quarter there, so it runs alone. A key may have `per_key` under way and
    waiting; beyond that it is refused (429).
    """

    def __init__(self, what: str, most: int, per_key: float = inf) -> None:
        self.busy: int = 0
        self._what = what
        self._most = most
        self._each_most = max(most // 4, 1)
        self._per_key = per_key
        self._shares: dict[str, _Share] = {}
        self._next: dict[str, _Share] = {}
        """Keys whose turn comes, in this order."""

    def turn(self, key_id: str, cost: int = 1) -> "Turn":
        """An async context for work of that cost. Raises `ApiProblem`: 429, 503."""
        return Turn(self, key_id, max(cost, 1))

    async def begin(self, key_id: str, cost: int, within: float | None = None) -> None:
        """Wait until it is this work's turn, for `within` seconds. Raises `ApiProblem`: 429, 503."""
        if not self.starts(key_id, cost):
            await self.wait(key_id, cost, within)

    def starts(self, key_id: str, cost: int) -> bool:
        """Begin work, if it need not `wait` for its turn. Raises `ApiProblem`, 429."""
        share = self._shares.get(key_id)
        if share is None:
            share = self._shares[key_id] = _Share()
        if share.total and share.total + cost > self._per_key:
            raise ApiProblem(
                "limit",
                f"this API key has {share.total} {self._what} in progress; its limit is {self._per_key:g}",
                retry_after=1,
            )
        share.total += cost
        part = min(cost, self._each_most)
        room = self.busy < self._most and share.busy + part <= self._each_most
        if room and not share.waiting and not self._next:
            share.busy += part
            self.busy += part
            return True
        return False

    def end(self, key_id: str, cost: int) -> None:
        """End work that has begun."""
        share = self._shares[key_id]
        part = min(cost, self._each_most)
        self.busy -= part
        share.busy -= part
        self._forget(key_id, share, cost)

    async def wait(self, key_id: str, cost: int, within: float | None = None) -> None:
        """Wait for the turn of work that did not start. Raises `ApiProblem`, 503, if that takes too long."""
        share, longest = self._shares[key_id], TURN_TIMEOUT if within is None else within
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((min(cost, self._each_most), turn))
        self._line_up(key_id, share)
        self._start_more()
        try:
            async with asyncio.timeout(longest):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came at that moment
                self.end(key_id, cost)
            else:
                self._forget(key_id, share, cost)
            if isinstance(error, TimeoutError):
                raise ApiProblem(
                    "overloaded",
                    f"the server is overloaded: {self._what} wait for more than {longest:g} s",
                    retry_after=1,
                ) from None
            raise

    def _line_up(self, key_id: str, share: _Share) -> None:
        """Give a key a turn if its first waiting work fits beside its work under way."""
        while share.waiting and share.waiting[0][1].done():
            share.waiting.popleft()  # it waits no more
        if share.waiting and share.busy + share.waiting[0][0] <= self._each_most:
            self._next.setdefault(key_id, share)
        else:
            self._next.pop(key_id, None)

    def _start_more(self) -> None:
        """Start work of one key after the other while there is room."""
        while self._next and self.busy < self._most:
            key_id, share = next(iter(self._next.items()))
            self._line_up(key_id, share)
            if self._next.pop(key_id, None) is None:
                continue
            part, turn = share.waiting.popleft()
            share.busy += part
            self.busy += part
            turn.set_result(None)
            self._line_up(key_id, share)  # behind the others

    def _forget(self, key_id: str, share: _Share, cost: int) -> None:
        share.total -= cost
        if not share.total:
            self._shares.pop(key_id, None)
        if share.waiting or self._next:
            self._line_up(key_id, share)
            self._start_more()


class Turn:
    """Context of work in a `FairQueue`."""

    __slots__ = ("_cost", "_key_id", "_queue")

    def __init__(self, queue: FairQueue, key_id: str, cost: int) -> None:
        self._queue = queue
        self._key_id = key_id
        self._cost = cost

    async def __aenter__(self) -> None:
        if not self._queue.starts(self._key_id, self._cost):
            await self._queue.wait(self._key_id, self._cost)

    async def __aexit__(self, *_: object) -> None:
        self._queue.end(self._key_id, self._cost)
