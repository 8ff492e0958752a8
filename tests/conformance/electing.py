"""`LeaderElection` over the store, for asyncio and threads."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import AcquireTimeout, NotHeld
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, now, using, within
from dibs.testing.conformance.world import PATIENCE, World


class LeaderClients(Suite):
    """One leader at a time, hand-overs, losses, observers."""

    def leader(self, world: World, users: Users, **options: Any) -> Any:
        """A candidate, by a client of its own."""
        second = world.second
        timing = {"ttl": 15 * second, "renew_deadline": 10 * second, "retry": 2 * second}
        return users.client().leader_election(users.name, **timing, **options)

    @case
    @using
    async def test_a_leader_is_seen_by_all(self, world: World, users: Users) -> None:
        leader, observer = self.leader(world, users, note="why"), self.leader(world, users)
        assert await now(observer.who()) is None

        async def lead(term: Any) -> None:
            seen = await now(observer.who())
            assert (seen.token, seen.note) == (term.token, "why")
            assert leader.is_leader()
            assert not observer.is_leader()
            assert 0 < term.remaining <= 10 * world.second

        for _ in range(2):
            await within(world, leader, lead)
            assert not leader.is_leader()
            assert await now(observer.who()) is None

    @case
    @using
    async def test_who_steps_down_hands_over_at_once(self, world: World, users: Users) -> None:
        told: list[tuple[str, int]] = []

        def diary(who: str) -> dict[str, Callable[[Any], None]]:
            return {
                "on_started": lambda term: told.append((f"{who} starts", term.token)),
                "on_stopped": lambda term: told.append((f"{who} stops", term.token)),
            }

        one = self.leader(world, users, **diary("one")).campaign()
        two = self.leader(world, users, **diary("two")).campaign()

        async def lead(_: Any) -> None:
            assert await now(one.wait()) is True
            await within(world, two, follow)

        async def follow(_: Any) -> None:
            await happens(world, lambda: self.waiting(users) == 1)
            assert not two.is_leader()
            with pytest.raises(NotHeld):
                await within(world, two.guard(), lead)
            one.resign()
            assert await now(two.wait()) is True
            assert not one.is_leader()

        await within(world, one, lead)
        assert [what for what, _ in told[:4]] == [
            "one starts",
            "one stops",
            "two starts",
            "two stops",
        ]
        tokens = [token for what, token in told if what.endswith("starts")]
        assert tokens == sorted(set(tokens))

    def waiting(self, users: Users) -> int:
        """How many candidates wait, as another process sees it."""
        found: list[int] = []

        def look() -> None:
            found.append(users.client(blocking=True).status(users.name, "leader").waiting)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return found[0]


async def happens(world: World, what: Callable[[], object]) -> None:
    """Wait for something to happen in the background."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        if world.mode == "async":
            await asyncio.sleep(0.005)
        else:
            time.sleep(0.005)


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
