"""Reentrant locks and lock delays over the store, as their users see them."""

import threading
import time
from typing import Any

import pytest

from dibs.core.names import fingerprint, wait_key
from dibs.errors import AcquireTimeout, Deadlock
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, call, now, using
from dibs.testing.conformance.world import PATIENCE, World


class NestingClients(Suite):
    """Holds that are acquired again, and holds that leave their lock closed."""

    @case
    @using
    async def test_a_reentrant_lock_is_given_up_with_its_last_release(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = users.lock(users.client(), reentrant=True), users.lock(users.client())
        lease = await now(mine.acquire())
        assert await now(mine.acquire()) is lease
        (holder,) = (await now(theirs.status())).holders
        assert (holder.token, holder.units) == (lease.token, 1)
        assert await now(lease.release()) is True
        lease.ensure()
        with pytest.raises(AcquireTimeout):
            await now(theirs.acquire(wait=0))
        assert [await now(lease.release()), await now(lease.release())] == [True, False]
        later = await now(theirs.acquire(wait=0))
        assert later.token > lease.token
        await now(later.release())

    @case
    @using
    async def test_a_lock_delay_keeps_what_expired_closed(self, world: World, users: Users) -> None:
        second = world.second
        options = {"ttl": 10 * second, "lock_delay": 20 * second, "auto_renew": False}
        mine, theirs = users.lock(users.client(), **options), users.lock(users.client())
        await now((await now(mine.acquire())).release())
        await now((await now(theirs.acquire(wait=0))).release())
        first = await now(mine.acquire())
        await world.outlast(10 * second, by=await world.connect())
        assert first.reason == "expired"
        with pytest.raises(AcquireTimeout, match="retained") as refusal:
            await now(theirs.acquire(wait=0))
        assert 0 < (refusal.value.retry_after or 0) <= world.at_most(20 * second)
        await world.outlast(20 * second, by=await world.connect())
        second_lease = await now(theirs.acquire(wait=0))
        assert second_lease.token > first.token
        await now(second_lease.release())

    @needing("manual")
    @using
    async def test_who_waits_gets_it_when_the_lock_delay_is_over(
        self, world: World, users: Users
    ) -> None:
        options = {"ttl": 10, "lock_delay": 20, "auto_renew": False}
        mine, theirs = users.lock(users.client(), **options), users.lock(users.client())
        first = await now(mine.acquire())
        got = threading.Event()

        def let_time_pass() -> None:
            """Step by step: who waits may not have looked at the clock before the first."""
            end = time.monotonic() + PATIENCE
            while not got.wait(0.01) and time.monotonic() < end:
                world.pass_time(5)

        users.when_queued(let_time_pass)
        later = await now(theirs.acquire(wait=None))
        got.set()
        assert first.lost
        assert later.token > first.token
        await now(later.release())


class CircleClients(Suite):
    """Deadlocks."""

    @needing("circles")
    @using
    async def test_one_of_two_who_wait_for_each_other_gives_way(
        self, world: World, users: Users
    ) -> None:
        other = _Other(world, users)
        client, backend = users.client(), await world.connect()
        first = await now(client.lock(other.waits_for, ttl=30 * world.second).acquire())
        await call(world, other.start)
        try:
            second = await now(client.lock(other.holds, ttl=30 * world.second).acquire())
            await now(second.release())
        except Deadlock as error:
            other.errors.append(error)
        await now(first.release())
        await call(world, other.join)
        (told,) = other.errors
        for name in (other.holds, other.waits_for):
            assert f"holds {name.decode()} and waits for " in str(told)
        assert {holder.token for holder in told.holders} == {first.token, other.lease.token}
        for lease in (first, other.lease):
            key, end = wait_key(fingerprint(lease._id)), time.monotonic() + PATIENCE
            while (await world.status(backend, key)).holders:
                assert time.monotonic() < end, "what it told stands, though it waits no more"
                await call(world, lambda: time.sleep(0.01))


class _Other:
    """Another process, as far as the store can tell: it holds one lock, and waits for another."""

    def __init__(self, world: World, users: Users) -> None:
        self.holds = users.name + b"/b"
        self.waits_for = users.name
        self.errors: list[Deadlock] = []
        self.lease: Any = None
        self._world = world
        self._client = users.client(blocking=True)
        self._holding, self._over = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._wait, daemon=True)]
        if world.manual:
            self._threads.append(threading.Thread(target=self._move_time, daemon=True))

    def start(self) -> None:
        """Hold what it holds."""
        for thread in self._threads:
            thread.start()
        assert self._holding.wait(PATIENCE)

    def join(self) -> None:
        """Wait until it has given up everything."""
        self._threads[0].join(PATIENCE)
        self._over.set()
        self._threads[-1].join(PATIENCE)

    def _wait(self) -> None:
        ttl = 30 * self._world.second
        with self._client.lock(self.holds, ttl=ttl) as self.lease:
            self._holding.set()
            try:
                self._client.lock(self.waits_for, ttl=ttl).acquire().release()
            except Deadlock as error:
                self.errors.append(error)

    def _move_time(self) -> None:
        while not self._over.wait(0.005):
            self._world.pass_time(0.1)
