"""`TaskLock` over the store, for asyncio and threads."""

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

    @needing("manual")
    @using
    async def test_one_start_at_a_time_and_none_again_before_min_hold(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = self.task(world, users), self.task(world, users, note="nightly")

        async def fail(lease: Any) -> None:
            with pytest.raises(AcquireTimeout) as refusal:
                await now(mine.acquire())
            assert [(holder.token, holder.note) for holder in refusal.value.holders] == [
                (lease.token, "nightly")
            ]
            assert not await now(users.lock(users.client()).locked()), "a lock is another thing"
            world.pass_time(4)
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await within(world, theirs, fail)
        for _ in range(2):
            assert await now(mine.try_acquire()) is None
            (holder,) = (await now(mine.status())).holders
            assert holder.state == "retained"
            assert holder.expires_in <= world.at_most(6)
            world.pass_time(2.5)
        world.pass_time(1.5)
        await now((await now(mine.acquire())).release())

    @case
    @using
    async def test_a_task_that_never_ends_keeps_nobody_out_beyond_max_hold(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = self.task(world, users), self.task(world, users)
        first = await now(theirs.acquire())
        world.pass_time(58 * world.second)
        assert first.reason == "max_hold"
        key = world.key().replace(world.kind, b"tasklock", 1)
        await world.outlast(60 * world.second, key, by=await world.connect())
        second = await now(mine.acquire())
        assert second.token > first.token
        assert await now(first.release()) is False
        assert await now(theirs.try_acquire()) is None, "a late release changes nothing"
        await now(second.release())
