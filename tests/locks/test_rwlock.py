"""Readers, writers, and leases that change from one to the other."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import BackendUnavailable, NotHeld, Reentrant
from dibs.errors import AcquireTimeout, LeaseLost
from dibs.model import MANY, Acquire, Command, Release, Resize
from tests.locks.waits import Holder, pause, until_queued
from tests.locks.worlds import World, away, heal, in_both_worlds, outage, site
from tests.runtime.stores import TappedStore


async def units(w: World) -> list[int]:
    """What the store has: how many units each holder."""
    status = await w.get(w.client.status("a", "rwlock"))
    return [holder.units for holder in status.holders]


async def test_an_upgrade_waits_in_front_and_asks_no_more_often_than_any_waiter(w: World) -> None:
    store, client = site(w)
    other = Holder(w, w.another().rwlock("a", ttl=30).read())
    await other.holds()
    lease = await client.rwlock("a", ttl=30).read().acquire()
    writer = Holder(w, w.another().rwlock("a", ttl=30).write())
    await until_queued(w, "a", 1, "rwlock")
    upgrading = asyncio.create_task(lease.upgrade())
    await until_queued(w, "a", 2, "rwlock")
    asked: list[Command] = []
    store.before = asked.extend
    for _ in range(150):
        w.clock.advance(0.4)
        await pause(w)
    heartbeats = [command for command in asked if isinstance(command, Acquire)]
    assert 15 < len(heartbeats) < 60, "one every third of a claim timeout"
    assert not any(isinstance(command, Resize) for command in asked)
    places = (await w.client.status("a", "rwlock")).waiters
    assert places[0].note == "waits to upgrade the lease that it reads under"
    await other.lets_go()
    await upgrading  # although the clock stands still
    assert lease.mode == "write"
    assert not writer.settled
    await lease.release()
    await writer.holds()
    await writer.lets_go()


@in_both_worlds
async def test_a_reader_that_wants_to_write_gets_advice(w: World) -> None:
    lock = w.client.rwlock("a")
    lease = await w.get(lock.read().acquire())
    with pytest.raises(Reentrant, match=r"upgrade\(\) the lease that is held"):
        await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="pass the lease on"):
        await w.get(lock.read().acquire(wait=5))
    with pytest.raises(AcquireTimeout, match="by this task or thread"):
        await w.get(lock.write().acquire(wait=0))
    other = w.another().rwlock("a")
    for side in (other.read(), other.write()):
        with pytest.raises(ValueError, match="a reader takes one, a writer all"):
            await w.get(side.acquire(units=2))
    await w.get(lease.release())
    for change in (lease.upgrade, lease.downgrade):
        with pytest.raises(NotHeld):
            await w.get(change())
    await w.get((await w.get(lock.write().acquire())).release())
    with pytest.raises(TypeError, match=r"with RWLock\('a'\).read\(\)` or"):
        await w.enter(lock)


@in_both_worlds
async def test_an_uncontended_cycle_is_two_commands_and_a_change_is_one(w: World) -> None:
    store, client = site(w)
    sent: list[type[Command]] = []
    store.before = lambda commands: sent.extend(map(type, commands))
    lock = client.rwlock("a")
    await w.get((await w.get(lock.write().acquire())).release())
    reader = await w.get(lock.read().acquire())
    await w.get(reader.downgrade())
    await w.get(reader.upgrade())
    first = reader.token
    await w.get(reader.upgrade())
    assert reader.token == first
    await w.get(reader.release())
    assert sent == [Acquire, Release, Acquire, Resize, Release], "nothing is asked in vain"


@in_both_worlds
async def test_a_downgrade_during_an_outage_is_made_later(w: World) -> None:
    store, client = site(w)
    lease = await w.hold(client.rwlock("a").write())
    with outage(store):
        await w.get(lease.downgrade())
        assert lease.mode == "read", "nobody writes any more, whatever the store knows"
        assert await units(w) == [MANY]
    w.clock.advance(2)
    assert await units(w) == [1]


def test_an_interrupt_leaves_nothing() -> None:
    w = World("sync")
    store, client = site(w)
    lease = client.rwlock("a").read().acquire()

    def interrupt(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            heal(store)
            raise KeyboardInterrupt

    for hook in ("before", "after"):
        for mode, change in (("read", lease.upgrade), ("write", lease.downgrade)):
            if mode == "write":
                lease.upgrade()
            setattr(store, hook, interrupt)
            with pytest.raises(KeyboardInterrupt):
                change()
            assert lease.mode == "read"
            w.clock.advance(1)
            assert [holder.units for holder in client.rwlock("a").status().holders] == [1]
    assert lease.release()


async def upgraded_in_vain(w: World, store: TappedStore, lease: Any) -> None:
    """The store has made it the writer, and goes away before anybody hears of it."""

    def fail(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            store.before = away
            raise BackendUnavailable("planted")

    store.after = fail
    with pytest.raises(BackendUnavailable):
        await w.get(lease.upgrade(wait=0))
    assert lease.mode == "read"
    assert await units(w) == [MANY]


@in_both_worlds
async def test_a_second_try_finds_that_the_first_was_granted(w: World) -> None:
    store, client = site(w)
    lease = await w.hold(client.rwlock("a").read())
    await upgraded_in_vain(w, store, lease)
    heal(store)
    await w.get(lease.upgrade(wait=0))
    status = await w.get(w.client.status("a", "rwlock"))
    assert (lease.mode, lease.token) == ("write", status.last_token)
    w.clock.advance(60)
    assert await units(w) == [MANY], "what was to be taken back is void"
    lease.ensure()


@pytest.mark.parametrize(("wait", "back_after", "ends"), [(5, 1, None), (3, 99, 3), (None, 99, 10)])
async def test_an_upgrade_outlives_an_outage_shorter_than_its_wait(
    w: World, wait: float | None, back_after: float, ends: float | None
) -> None:
    store, client = site(w)
    lease = await client.rwlock("a").read().acquire()
    store.before = away
    began = w.clock.now()
    upgrade = asyncio.create_task(lease.upgrade(wait=wait))
    while not upgrade.done():
        w.clock.advance(0.05)
        await asyncio.sleep(0)
        if w.clock.now() - began > back_after:
            heal(store)
    if ends is None:
        await upgrade
        assert lease.mode == "write"
    else:
        with pytest.raises(BackendUnavailable):
            await upgrade
        assert ends <= w.clock.now() - began < ends + 0.5
        assert lease.mode == "read"
    heal(store)
    await lease.release()


async def test_an_upgrade_ends_with_its_lease(w: World) -> None:
    lock = w.client.rwlock("a", ttl="3s", auto_renew=False)
    reader = await asyncio.create_task(w.client.rwlock("a").read().acquire())
    lease = await lock.read().acquire()
    began, upgrade = w.clock.now(), asyncio.create_task(lease.upgrade())
    while not upgrade.done():
        w.clock.advance(0.1)
        await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        await upgrade
    assert w.clock.now() - began < 3, "it notices at the deadline"
    assert w.client.session.keeper.flush(5)
    assert (await lock.status()).waiting == 0
    await reader.release()
