"""Reentrant locks and lock delays over the store, as their users see them."""

import threading
import time
from typing import Any

import pytest

from dibs.errors import AcquireTimeout, LeaseLost, Reentrant
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, now, using, within
from dibs.testing.conformance.world import PATIENCE, World


class NestingClients(Suite):
    """Holds that are acquired again, and holds that leave their lock closed."""

    @case
    @using
    async def test_a_reentrant_lock_is_given_up_with_its_last_lease(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = users.lock(users.client(), reentrant=True), users.lock(users.client())
        outer, inner = await now(mine.acquire()), await now(mine.acquire())
        assert (inner.token, inner.slots) == (outer.token, outer.slots)
        (holder,) = (await now(theirs.status())).holders
        assert (holder.token, holder.units) == (outer.token, 1)
        assert [await now(outer.release()), await now(outer.release())] == [True, False]
        inner.ensure()
        with pytest.raises(AcquireTimeout):
            await now(theirs.acquire(wait=0))
        assert await now(inner.release()) is True
        later = await now(theirs.acquire(wait=0))
        assert later.token > inner.token
        await now(later.release())

    @case
    @using
    async def test_a_reentrant_lock_is_lost_for_all_its_leases(
        self, world: World, users: Users
    ) -> None:
        mine, others = users.lock(users.client(), reentrant=True), users.client()
        reached: list[str] = []

        async def inside(outer: Any) -> None:
            with pytest.raises(LeaseLost, match="enough"):
                await within(world, mine, revoke)
            assert outer.lost
            reached.append("between the blocks")

        async def revoke(inner: Any) -> None:
            await now(others.revoke(users.name, reason="enough", now=True))
            await now(inner.renew())

        with pytest.raises(LeaseLost, match="enough"):
            await within(world, mine, inside)
        assert reached
        await now((await now(mine.acquire(wait=0))).release())

    @case
    @using
    async def test_a_reentrant_rwlock_is_read_or_written_again(
        self, world: World, users: Users
    ) -> None:
        options = {"ttl": 30 * world.second, "reentrant": True}
        mine, theirs = (users.client().rwlock(users.name, **options) for _ in range(2))
        readers = [await now(mine.read().acquire()) for _ in range(2)]
        assert await now(theirs.write().try_acquire()) is None
        with pytest.raises(Reentrant):
            await now(mine.write().acquire())
        for lease in readers:
            await now(lease.release())
        writers = [await now(mine.write().acquire()) for _ in range(2)]
        await now(writers[0].release())
        assert await now(theirs.read().try_acquire()) is None
        await now(writers[1].release())
        await now((await now(theirs.write().acquire())).release())

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
        assert 0 < (refusal.value.retry_after or 0) <= 20 * second
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
