"""`Lock` and `Semaphore` over the store: what a user sees, the same for asyncio and threads."""

import threading
from typing import Any

import pytest

from dibs.errors import AcquireTimeout, LeaseLost, NotHeld, Reentrant
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, in_thread, list_keys, now, using, within
from dibs.testing.conformance.world import World


class Clients(Suite):
    """The public surface over the store."""

    @case
    @using
    async def test_acquire_and_release(self, world: World, users: Users) -> None:
        lock = users.lock(users.client())
        lease = await now(lock.acquire())
        assert lease.token > 0
        assert (lease.slots, lease.slot, lease.lost) == ((0,), 0, False)
        assert 0 < lease.remaining <= 30 * world.second
        assert await now(lock.locked())
        assert await now(lease.release()) is True
        assert await now(lease.release()) is False
        assert not await now(lock.locked())
        with pytest.raises(NotHeld):
            lease.ensure()

    @case
    @using
    async def test_a_try_is_none_while_others_hold(self, world: World, users: Users) -> None:
        mine, theirs = users.lock(users.client()), users.lock(users.client())
        lease = await now(theirs.acquire())
        assert await now(mine.try_acquire()) is None
        with pytest.raises(AcquireTimeout) as refusal:
            await now(mine.acquire(wait=0))
        assert [holder.token for holder in refusal.value.holders] == [lease.token]
        assert refusal.value.key == world.key()
        await now(lease.release())
        again = await now(mine.try_acquire())
        assert again.token > lease.token
        await now(again.release())

    @case
    @using
    async def test_a_block_releases_on_every_way_out(self, world: World, users: Users) -> None:
        lock = users.lock(users.client())

        async def fail(lease: Any) -> None:
            lease.ensure()
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await within(world, lock, fail)
        assert not await now(lock.locked())

    @case
    @using
    async def test_a_release_hands_over_to_who_waits(self, world: World, users: Users) -> None:
        mine, theirs = users.lock(users.client()), users.lock(users.client(blocking=True))
        first = theirs.acquire() if world.mode == "blocking" else await in_thread(theirs.acquire)
        users.when_queued(first.release)
        second = await now(mine.acquire(wait=None))
        assert second.token > first.token
        assert not second.lost
        await now(second.release())

    @needing("manual")
    @using
    async def test_a_wait_ends_in_time_and_leaves_nothing(self, world: World, users: Users) -> None:
        mine = users.lock(users.client())
        held = await now(users.lock(users.client(), ttl=3000, auto_renew=False).acquire())
        over = threading.Event()

        def let_time_pass() -> None:
            """In steps: who waits may not have looked at the clock before the first."""
            while not over.wait(0.01):
                world.pass_time(1)

        users.when_queued(let_time_pass)
        try:
            with pytest.raises(AcquireTimeout):
                await now(mine.acquire(wait=5))
        finally:
            over.set()
        status = await now(mine.status())
        assert (status.waiting, len(status.holders)) == (0, 1)
        await now(held.release())

    @needing("manual")
    @using
    async def test_a_lease_is_renewed_while_it_is_held(self, world: World, users: Users) -> None:
        mine, theirs = users.lock(users.client()), users.lock(users.client())
        lease = await now(mine.acquire())
        for _ in range(20):
            world.pass_time(15)
            lease.ensure()
            assert await now(theirs.try_acquire()) is None
        assert await now(lease.release()) is True

    @case
    @using
    async def test_without_renewal_it_is_lost_in_time(self, world: World, users: Users) -> None:
        mine = users.lock(users.client(), ttl=10 * world.second, auto_renew=False)
        theirs = users.lock(users.client())
        lease = await now(mine.acquire())
        lease.ensure(needs=5 * world.second)
        world.pass_time(6 * world.second)
        with pytest.raises(LeaseLost):
            lease.ensure(needs=5 * world.second)
        assert await now(theirs.try_acquire()) is None, "the holder learns before others get it"
        world.pass_time(3.5 * world.second)
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.ensure()
        await world.outlast(10 * world.second, by=await world.connect())
        other = await now(theirs.try_acquire())
        assert other is not None
        assert await now(lease.release()) is False
        assert await now(theirs.locked())
        await now(other.release())

    @case
    @using
    async def test_leaving_a_block_tells_of_the_loss(self, world: World, users: Users) -> None:
        lock = users.lock(users.client(), ttl=10 * world.second, auto_renew=False)

        async def outlive(lease: Any) -> None:
            world.pass_time(11 * world.second)

        with pytest.raises(LeaseLost) as loss:
            await within(world, lock, outlive)
        assert loss.value.reason == "expired"

    @case
    @using
    async def test_leaving_a_block_tells_of_an_end_that_nobody_noticed(
        self, world: World, users: Users
    ) -> None:
        """The store has no such lease any more, as after a restart without its data."""
        client = users.client()
        handle = (await now(users.lock(client).acquire())).detach()
        mine, copy = await now(client.attach(handle)), await now(users.client().attach(handle))

        async def lose(_: Any) -> None:
            assert await now(copy.release()) is True

        with pytest.raises(LeaseLost, match="no such lease any more") as loss:
            await within(world, mine, lose)
        assert (loss.value.reason, mine.reason) == ("expired", "expired")

    @case
    @using
    async def test_renewing_by_hand(self, world: World, users: Users) -> None:
        lock = users.lock(users.client(), ttl=10 * world.second, auto_renew=False)
        lease = await now(lock.acquire())
        for _ in range(4):
            world.pass_time(5 * world.second)
            await now(lease.renew())
        assert lease.remaining > 5 * world.second
        assert await now(lease.release()) is True

    @case
    @using
    async def test_a_revoked_lease_is_lost_at_its_next_renewal(
        self, world: World, users: Users
    ) -> None:
        client = users.client()
        lease = await now(users.lock(users.client()).acquire())
        assert await now(client.revoke(users.name, reason="upgrade")) == 1
        with pytest.raises(LeaseLost) as loss:
            await now(lease.renew())
        assert loss.value.reason == "revoked"
        assert lease.reason == "revoked"

    @case
    @using
    async def test_a_detached_lease_goes_on_elsewhere(self, world: World, users: Users) -> None:
        client = users.client()
        lease = await now(users.lock(users.client()).acquire())
        handle = lease.detach()
        taken = await now(client.attach(handle))
        assert (taken.token, taken.slots) == (lease.token, lease.slots)
        with pytest.raises(NotHeld):
            lease.ensure()
        assert await now(taken.release()) is True

    @case
    @using
    async def test_nested_waiting_is_refused(self, world: World, users: Users) -> None:
        lock = users.lock(users.client())
        lease = await now(lock.acquire())
        with pytest.raises(Reentrant):
            await now(lock.acquire())
        assert await now(lock.try_acquire()) is None
        await now(lease.release())

    @case
    @using
    async def test_slots_of_a_semaphore(self, world: World, users: Users) -> None:
        client = users.client()
        pool = client.semaphore(users.name, 3, ttl=30 * world.second)
        one, two = await now(pool.acquire()), await now(pool.acquire(units=2))
        assert (one.slots, two.slots) == ((0,), (1, 2))
        assert await now(pool.try_acquire()) is None
        assert not await now(users.lock(client).locked()), "a lock of that name is another thing"
        for lease in (one, two):
            await now(lease.release())

    @case
    @using
    async def test_status_and_list(self, world: World, users: Users) -> None:
        client = users.client()
        lease = await now(users.lock(client, note="nightly", label="batch").acquire())
        status = await now(client.status(users.name))
        (holder,) = status.holders
        assert (holder.token, holder.note) == (lease.token, "nightly")
        assert holder.owner.endswith("/batch")
        found = client.list(users.name)
        keys = [each.key async for each in found] if world.mode == "async" else list_keys(found)
        assert keys == [world.key()]
        await now(lease.release())
