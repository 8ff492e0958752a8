"""`TaskLock` over the store, in both worlds."""

from typing import Any

import pytest

from dibs.errors import AcquireTimeout
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, now, using, within
from dibs.testing.conformance.world import World


class TaskClients(Suite):
    """One start at a time, none too soon after the one before, nobody kept out for too long."""

    def task(self, world: World, users: Users, **options: Any) -> Any:
        """The case's task lock, by a client of its own: 10 to 60 seconds."""
        second = world.second
        return users.client().task_lock(users.name, 10 * second, 60 * second, **options)

    @case
    @using
    async def test_one_start_of_a_task_at_a_time(self, world: World, users: Users) -> None:
        mine, theirs = self.task(world, users), self.task(world, users, note="nightly")
        lease = await now(theirs.acquire())
        with pytest.raises(AcquireTimeout) as refusal:
            await now(mine.acquire())
        assert [(holder.token, holder.note) for holder in refusal.value.holders] == [
            (lease.token, "nightly")
        ]
        assert await now(mine.try_acquire()) is None
        assert not await now(users.lock(users.client()).locked()), "a lock is another thing"
        await now(lease.release())

    @needing("manual")
    @using
    async def test_a_task_does_not_start_again_before_min_hold(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = self.task(world, users), self.task(world, users)

        async def fail(lease: Any) -> None:
            world.pass_time(4)
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await within(world, theirs, fail)
        for _ in range(2):
            assert await now(mine.try_acquire()) is None
            (holder,) = (await now(mine.status())).holders
            assert holder.state == "kept"
            assert holder.expires_in <= 6
            world.pass_time(2.5)
        world.pass_time(1.5)
        await now((await now(mine.acquire())).release())

    @needing("manual")
    @using
    async def test_a_task_longer_than_min_hold_leaves_it_free(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = self.task(world, users), self.task(world, users)
        first = await now(theirs.acquire())
        world.pass_time(11)
        assert await now(first.release()) is True
        second = await now(mine.acquire())
        assert second.token > first.token
        await now(second.release())

    @case
    @using
    async def test_a_task_that_never_ends_keeps_nobody_out_beyond_max_hold(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = self.task(world, users), self.task(world, users)
        first = await now(theirs.acquire())
        world.pass_time(58 * world.second)
        assert first.reason == "max_hold"
        key = world.key().replace(b"lock:", b"tasklock:", 1)
        await world.outlast(60 * world.second, key, by=await world.connect())
        second = await now(mine.acquire())
        assert second.token > first.token
        assert await now(first.release()) is False
        assert await now(theirs.try_acquire()) is None, "a late release changes nothing"
        await now(second.release())
