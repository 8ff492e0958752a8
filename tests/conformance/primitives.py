"""Readers-writer locks, task locks and deadlocks over the store, as its users see them."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from dibs.core.names import fingerprint, wait_key
from dibs.errors import AcquireTimeout, Deadlock, LeaseLost
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, call, now, using, within
from dibs.testing.conformance.world import PATIENCE, World


def rwlock(users: Users, *, blocking: bool | None = None, **options: Any) -> Any:
    """The case's readers-writer lock, by another client."""
    options.setdefault("ttl", 30 * users.world.second)
    return users.client(blocking=blocking).rwlock(users.name, **options)


def try_to_pass(users: Users, reader: Any) -> list[Any]:
    """As soon as somebody waits another one tries to read, which the list tells, and `reader` leaves."""
    later: list[Any] = []

    def act() -> None:
        later.append(rwlock(users, blocking=True).read().try_acquire())
        reader.release()

    users.when_queued(act, kind="rwlock")
    return later


@contextmanager
def passing(world: World) -> Generator[None]:
    over = threading.Event()

    def pass_on() -> None:
        while not over.is_set():
            world.pass_time(0.05 * world.second)
            time.sleep(0.005)

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class ReaderClients(Suite):
    @case
    @using
    async def test_many_read_or_one_writes(self, world: World, users: Users) -> None:
        mine, theirs = rwlock(users), rwlock(users)
        readers = [await now(lock.read().acquire()) for lock in (mine, theirs)]
        assert [lease.mode for lease in readers] == ["read", "read"]
        assert readers[0].token < readers[1].token
        assert await now(theirs.write().try_acquire()) is None
        assert not await now(mine.read().locked())
        assert await now(mine.locked())
        for lease in readers:
            assert await now(lease.release())

        async def write(lease: Any) -> None:
            assert lease.mode == "write"
            assert await now(theirs.read().try_acquire()) is None
            assert await now(theirs.write().try_acquire()) is None
            assert await now(theirs.read().locked())

        await within(world, mine.write(), write)
        assert not await now(mine.locked())

    @case
    @using
    async def test_a_writer_that_waits_goes_before_later_readers(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = rwlock(users), rwlock(users, blocking=True)
        reader = await call(world, theirs.read().acquire)
        later = try_to_pass(users, reader)
        writer = await now(mine.write().acquire(wait=None))
        assert later == [None]
        assert writer.token > reader.token
        await now(writer.release())

    @case
    @using
    async def test_an_upgrade_is_a_new_grant_and_a_downgrade_is_none(
        self, world: World, users: Users
    ) -> None:
        """Also of a lease that was detached and goes on elsewhere."""
        mine, theirs = rwlock(users), rwlock(users)
        lease, first = await now(mine.read().acquire()), 0
        for turn in range(3):
            await now(lease.upgrade(wait=0))
            assert (lease.mode, lease.token > first) == ("write", True)
            assert await now(theirs.read().try_acquire()) is None
            first = lease.token
            if turn == 1:
                lease = await now(users.client().attach(lease.detach()))
                assert (lease.mode, lease.token) == ("write", first)
            await now(lease.downgrade())
            assert (lease.mode, lease.token) == ("read", first)
            reader = await now(theirs.read().try_acquire())
            with pytest.raises(AcquireTimeout):
                await now(lease.upgrade(wait=0))
            await now(reader.release())
        assert await now(lease.release()) is True
        assert not await now(theirs.locked())

    @case
    @using
    async def test_an_upgrade_waits_for_readers_and_lets_nobody_in(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = rwlock(users), rwlock(users, blocking=True)
        other = await call(world, theirs.read().acquire)
        lease = await now(mine.read().acquire())
        later = try_to_pass(users, other)
        with passing(world):
            await now(lease.upgrade())
        assert later == [None]
        assert (lease.mode, lease.token > other.token) == ("write", True)
        assert (await now(mine.status())).waiting == 0
        await now(lease.release())

    @case
    @using
    async def test_two_upgrades_that_would_wait_for_each_other(
        self, world: World, users: Users
    ) -> None:
        mine, theirs = rwlock(users), rwlock(users, blocking=True)
        other = await call(world, theirs.read().acquire)
        lease = await now(mine.read().acquire())
        first = threading.Thread(target=other.upgrade)
        queued = threading.Event()
        users.when_queued(queued.set, kind="rwlock")
        with passing(world):
            first.start()
            await call(world, queued.wait)
            with pytest.raises(Deadlock, match="each would wait for the other"):
                await now(lease.upgrade())
            assert lease.mode == "read"
            assert other.mode == "read"
            assert await now(lease.release()) is True
            await call(world, first.join)
        assert other.mode == "write"
        assert await now(mine.read().try_acquire()) is None
        await call(world, other.release)

    @case
    @using
    async def test_who_lost_its_lease_changes_nothing(self, world: World, users: Users) -> None:
        """An expired writer lets readers in. A revoked reader does not become a writer."""
        mine, theirs = rwlock(users, ttl=10 * world.second, auto_renew=False), rwlock(users)
        expired, reader = await now(mine.write().acquire()), theirs.read()
        world.pass_time(9.5 * world.second)
        assert expired.lost
        with pytest.raises(LeaseLost):
            await now(expired.downgrade())
        assert await now(reader.try_acquire()) is None, "the writer learns before others get in"
        key = b"rwlock:" + users.name
        await world.outlast(10 * world.second, key, by=await world.connect())
        await now((await now(reader.acquire(wait=0))).release())
        revoked = await now(mine.read().acquire(wait=0))
        assert await now(theirs.revoke(reason="maintenance")) == 1
        with pytest.raises(LeaseLost) as loss:
            await now(revoked.upgrade())
        assert (loss.value.reason, revoked.mode) == ("revoked", "read")


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


class CircleClients(Suite):
    @needing("circles")
    @using
    async def test_one_of_two_who_wait_for_each_other_gives_way(
        self, world: World, users: Users
    ) -> None:
        client, other = users.client(), users.client(blocking=True)
        contested, theirs = users.name, users.name + b"/b"
        ttl, backend = 30 * world.second, await world.connect()
        holding, leases, errors = threading.Event(), list[Any](), list[Deadlock]()

        def hold_one_and_wait() -> None:
            with other.lock(theirs, ttl=ttl) as lease:
                leases.append(lease)
                holding.set()
                try:
                    other.lock(contested, ttl=ttl).acquire().release()
                except Deadlock as error:
                    errors.append(error)

        first = await now(client.lock(contested, ttl=ttl).acquire())
        thread = threading.Thread(target=hold_one_and_wait)
        with passing(world):
            thread.start()
            await call(world, lambda: holding.wait(PATIENCE))
            try:
                await now((await now(client.lock(theirs, ttl=ttl).acquire())).release())
            except Deadlock as error:
                errors.append(error)
            await now(first.release())
            await call(world, thread.join)
        (told,), leases = errors, [first, *leases]
        for name in (contested, theirs):
            assert f"holds {name.decode()} and waits for " in str(told)
        assert {holder.token for holder in told.holders} == {lease.token for lease in leases}
        for lease in leases:
            key, end = wait_key(fingerprint(lease._id)), time.monotonic() + PATIENCE
            while (await world.status(backend, key)).holders:
                assert time.monotonic() < end, "what it told stands, though it waits no more"
                await call(world, lambda: time.sleep(0.01))
