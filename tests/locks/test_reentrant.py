"""Reentrant locks: their holder acquires them again, and gives them up with the last of its leases."""

import asyncio
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, Client, LeaseLost, LockConfig, NotHeld, Reentrant
from dibs.model import Acquire, Command
from tests.locks.waits import Beside, Holder, cancelling, until, until_queued
from tests.locks.worlds import World, in_both_worlds, is_free, site


def lock_of(w: World, client: Any = None, **options: Any) -> Any:
    return (client or w.client).lock("a", reentrant=True, **options)


@pytest.mark.parametrize("by_hand", [False, True])
@in_both_worlds
async def test_it_is_acquired_again_without_asking_the_store(w: World, by_hand: bool) -> None:
    """A release within a block, by hand, takes no other block's hold."""
    store, client = site(w)
    asked: list[Command] = []
    store.before = asked.extend
    lock = lock_of(w, client)
    outer = await w.enter(lock)
    inner = await w.enter(lock)
    assert [type(command) for command in asked] == [Acquire]
    assert inner is outer
    if by_hand:
        await w.get(inner.release())
    await w.leave(lock)
    assert len(asked) == 1
    outer.ensure()
    assert not await is_free(w, w.another().lock("a"))
    await w.leave(lock)
    assert await is_free(w, w.another().lock("a"))
    assert await w.get(outer.wait_lost()) is False


@in_both_worlds
async def test_it_is_the_name_and_the_task_that_count_not_the_object(w: World) -> None:
    outer = await w.get(lock_of(w).acquire())
    inner = await w.get(lock_of(w, ttl="5m").acquire())
    assert (inner.token, inner.ttl) == (outer.token, outer.ttl)
    plain = w.client.lock("a")
    with pytest.raises(Reentrant, match="reentrant=True"):
        await w.get(plain.acquire())
    assert await w.get(plain.try_acquire()) is None
    assert not await is_free(w, w.another().lock("a")), "nor has anybody else got it"
    await w.get(inner.release())
    await w.get(outer.release())
    await w.hold(plain)
    with pytest.raises(Reentrant, match="already held by this task or thread"):
        await w.get(lock_of(w).acquire())
    with pytest.raises(AcquireTimeout):
        await w.get(lock_of(w, wait=0).acquire())


@in_both_worlds
async def test_the_count_moves_with_the_task_or_thread_that_adopts(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    other = Holder(w, lock)
    await until_queued(w, "a")
    tokens: list[int] = []

    async def elsewhere() -> None:
        inner.adopt()
        third = await w.get(lock.acquire())
        tokens.append(third.token)
        for lease in (third, inner):
            await w.get(lease.release())
        assert not other.settled
        await w.get(outer.release())

    await Beside(w, elsewhere).result()
    assert tokens == [outer.token]
    assert (await other.holds()).token > outer.token
    await other.lets_go()


@in_both_worlds
async def test_only_the_last_one_can_be_detached(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    with pytest.raises(Reentrant, match=r"held 2 times over.* can't be detached"):
        inner.detach()
    await w.get(outer.release())
    handle = inner.detach()
    with pytest.raises(NotHeld, match="detached"):
        inner.ensure()
    assert not await is_free(w, w.another().lock("a"))
    attached = await w.get(w.another().attach(handle))
    assert attached.token == inner.token
    await w.get(attached.release())


@in_both_worlds
async def test_readers_read_again_though_a_writer_waits(w: World) -> None:
    lock = w.client.rwlock("a", reentrant=True)
    outer = await w.get(lock.read().acquire())
    writer = Holder(w, w.another().rwlock("a").write())
    await until_queued(w, "a", 1, "rwlock")
    inner = await w.get(lock.read().acquire())
    assert (inner.token, inner.mode) == (outer.token, "read")
    with pytest.raises(Reentrant, match="upgrade"):
        await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="can't be upgraded"):
        await w.get(inner.upgrade())
    await w.get(outer.release())
    assert not writer.settled
    await w.get(inner.release())
    assert (await writer.holds()).token > inner.token
    await writer.lets_go()


@in_both_worlds
async def test_writers_write_again_and_change_only_alone(w: World) -> None:
    lock = w.client.rwlock("a", reentrant=True)
    outer, inner = await w.get(lock.write().acquire()), await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="can't be downgraded"):
        await w.get(outer.downgrade())
    with pytest.raises(Reentrant):
        await w.get(lock.read().acquire())
    await w.get(outer.release())
    await w.get(inner.downgrade())
    assert inner.mode == "read"
    again = await w.hold(lock.read())
    await w.get(inner.release())
    before = again.token
    await w.get(again.upgrade())
    assert (again.mode, again.token > before) == ("write", True)


def test_it_is_for_a_capacity_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="another slot"):
        dibs.Semaphore("a", 2, reentrant=True)
    with pytest.raises(TypeError, match="another slot"):
        dibs.Semaphore.from_config("a", 2, LockConfig(reentrant=True))
    monkeypatch.setenv("DIBS_REENTRANT", "yes")  # for all that support it
    assert dibs.Lock("a").config.reentrant
    assert dibs.RWLock("a").config.reentrant
    assert not dibs.Semaphore("a", 2).config.reentrant
    assert dibs.Semaphore("a", 1).config.reentrant


@in_both_worlds
async def test_a_loss_ends_all_leases_and_calls_on_lost_once(w: World) -> None:
    told: list[Any] = []
    lock = lock_of(w, on_lost=told.append)
    with pytest.raises(Reentrant, match="on_lost= is called once, for the outermost lease"):
        outer = await w.get(lock_of(w).acquire())
        await w.get(lock.acquire())
    await w.get(outer.release())
    leases = [await w.get(each.acquire()) for each in (lock, lock_of(w), lock)]
    w.clock.advance(2)  # so that threads have an inbox
    await w.get(leases[1].renew("2m"))
    assert [lease.ttl for lease in leases] == [120] * 3, "a renewal of one renews all"
    await w.get(w.client.revoke("a", reason="enough", now=True))
    for lease in leases:
        assert await w.get(lease.wait_lost(10)) is True
        assert lease.reason == "revoked"
        with pytest.raises(LeaseLost, match="enough"):
            lease.ensure()
    await until(w, lambda: bool(told))
    assert [lease.token for lease in told] == [leases[0].token]
    assert await is_free(w, w.another().lock("a"))
    fresh = await w.hold(lock)
    assert fresh.token > leases[0].token, "it holds nothing any more, so it acquires anew"
    assert [await w.get(lease.release()) for lease in leases] == [False] * 3
    fresh.ensure()


async def test_a_task_is_cancelled_once_and_each_block_raises_lease_lost(client: Client) -> None:
    lock = client.lock("a", reentrant=True)
    caught: list[str] = []
    with pytest.raises(LeaseLost) as outermost:
        async with lock:
            try:
                async with lock, lock:
                    await client.revoke("a", reason="enough")
                    await asyncio.sleep(3600)
            except LeaseLost as lost:
                caught.append(str(lost.reason))
                assert cancelling() == 0
                await asyncio.sleep(0.01)  # cleaning up is interrupted by nothing
                caught.append("cleaned up")
    assert caught == ["revoked", "cleaned up"]
    assert outermost.value.reason == "revoked"
    assert cancelling() == 0
    assert await asyncio.sleep(0, "not cancelled") == "not cancelled"
