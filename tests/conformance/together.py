"""`AllOf` over the store: several leases or none, for asyncio and threads."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.errors import AcquireTimeout
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.users import Users, call, now, using
from dibs.testing.conformance.world import World, step
from tests.conformance.readers import passing

HANDS = 6
NAMES = b"abc"


def all_of(world: World, *members: Any, **options: Any) -> Any:
    """One of the world under test."""
    module: Any = dibs if world.mode == "async" else dibs.sync
    return module.AllOf(*members, **options)


class Site:
    """Resources of a case's own, by one client."""

    def __init__(self, users: Users, *, blocking: bool | None = None) -> None:
        self._client = users.client(blocking=blocking)
        self._name = users.name
        self._ttl = 30 * users.world.second

    def lock(self, name: bytes) -> Any:
        """One lock."""
        return self._client.lock(self._name + b"/" + name, ttl=self._ttl)

    def semaphore(self, name: bytes, capacity: int) -> Any:
        """One semaphore."""
        return self._client.semaphore(self._name + b"/" + name, capacity, ttl=self._ttl)

    def rwlock(self, name: bytes) -> Any:
        """One readers-writer lock."""
        return self._client.rwlock(self._name + b"/" + name, ttl=self._ttl)


class Inside:
    """Who is where, to see whether two are in the same place."""

    def __init__(self) -> None:
        self._places: set[bytes] = set()
        self._mutex = threading.Lock()
        self.overlaps = 0
        self.rounds = 0

    def enter(self, places: Sequence[bytes]) -> None:
        """Somebody relies on all of these."""
        with self._mutex:
            self.overlaps += bool(self._places & set(places))
            self._places |= set(places)

    def leave(self, places: Sequence[bytes]) -> None:
        """And does no more."""
        with self._mutex:
            self._places -= set(places)
            self.rounds += 1


class TogetherClients(Suite):
    """Several leases, all or nothing."""

    rounds = 12
    """How often each hand takes its turn; fewer for a store to which each is dear."""

    @case
    @using
    async def test_all_are_granted_in_the_order_of_the_arguments(
        self, world: World, users: Users
    ) -> None:
        site = Site(users)
        wanted = (
            site.lock(b"z"),
            (site.semaphore(b"s", 3), 2),
            site.rwlock(b"r").write(),
            site.lock(b"a"),
        )
        leases = await now(all_of(world, *wanted).acquire())
        names = [b"z", b"s", b"r", b"a"]
        assert [lease.key.rpartition(b"/")[2] for lease in leases] == names
        assert leases[1].slots == (0, 1)
        assert 0 < leases.remaining <= 30 * world.second
        leases.ensure()
        other = Site(users)
        assert await now(other.lock(b"a").try_acquire()) is None
        assert await now(other.semaphore(b"s", 3).try_acquire(units=2)) is None
        assert await now(other.rwlock(b"r").read().try_acquire()) is None
        assert await now(leases.release()) is True
        again = await now(all_of(world, *wanted).acquire())
        assert all(new > old for new, old in zip(again.tokens, leases.tokens, strict=True))
        assert await now(again.release()) is True

    @case
    @using
    async def test_nothing_is_kept_after_a_refusal_or_a_time_out(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = Site(users), Site(users)
        held = await now(theirs.lock(b"b").acquire())
        three = all_of(world, mine.lock(b"c"), mine.lock(b"b"), mine.lock(b"a"))
        assert await now(three.try_acquire()) is None
        await self.are_free(theirs, b"a", b"c")
        with passing(world), pytest.raises(AcquireTimeout) as refusal:
            await now(three.acquire(wait=0.2 * world.second))
        assert [holder.token for holder in refusal.value.holders] == [held.token]
        await self.are_free(theirs, b"a", b"c")
        assert not (await now(theirs.lock(b"b").status())).waiting
        await now(held.release())
        leases = await now(three.try_acquire())
        assert leases is not None
        await now(leases.release())

    async def are_free(self, site: Site, *names: bytes) -> None:
        """Others can take each at once."""
        for name in names:
            lease = await now(site.lock(name).try_acquire())
            assert lease is not None, name
            await now(lease.release())

    @case
    @using
    async def test_whoever_waits_is_served_when_the_last_is_free(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = Site(users), Site(users, blocking=True)
        held = [await call(world, theirs.lock(name).acquire) for name in (b"a", b"b")]

        def let_go() -> None:
            for lease, name in zip(held, (b"a", b"b"), strict=True):
                wait_for(partial(is_awaited, theirs.lock(name)))
                lease.release()

        thread = threading.Thread(target=let_go)
        thread.start()
        with passing(world):
            leases = await now(all_of(world, mine.lock(b"b"), mine.lock(b"a")).acquire())
        assert leases[0].token > held[1].token
        await call(world, thread.join)
        assert await now(leases.release()) is True

    @case
    @using
    async def test_those_who_name_the_same_in_any_order_all_finish_and_never_overlap(
        self, world: World, users: Users
    ) -> None:
        inside = Inside()
        sites = [Site(users), Site(users)]

        def wanted(draw: Random, site: Site) -> tuple[list[bytes], Any]:
            names = [bytes([name]) for name in draw.sample(NAMES, draw.choice([2, 2, 3]))]
            return names, all_of(world, *(site.lock(name) for name in names))

        async def hand(number: int) -> None:
            draw = Random(number)
            for _ in range(self.rounds):
                names, both = wanted(draw, sites[number % 2])
                leases = await now(both.acquire(wait=None))
                inside.enter(names)
                leases.ensure()
                inside.leave(names)
                await now(leases.release())

        with passing(world):
            await all_hands(world, hand)
        assert (inside.overlaps, inside.rounds) == (0, HANDS * self.rounds)
        await self.are_free(sites[0], b"a", b"b", b"c")


async def all_hands(world: World, hand: Callable[[int], Any]) -> None:
    """Let all work at once: tasks, or threads."""
    if world.mode == "async":
        async with asyncio.timeout(60):
            await asyncio.gather(*(hand(number) for number in range(HANDS)))
        return
    threads = [
        threading.Thread(target=step, args=(hand(number),), daemon=True) for number in range(HANDS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"


def is_awaited(lock: Any) -> bool:
    """Somebody waits for that lock of the blocking world."""
    return bool(lock.status().waiting)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)
