"""Readers and writers: who comes next, and what helps users."""

import asyncio
from typing import Any

import pytest

from dibs import (
    AcquireTimeout,
    Client,
    LockConfig,
    Reentrant,
)
from dibs.model import MANY
from dibs.testing import ManualClock, expire, steal
from tests.primitives.worlds import World, in_both_worlds

# ---- who comes next -------------------------------------------------------------------------------


async def test_readers_without_end_do_not_starve_an_upgrade(
    client: Client, clock: ManualClock
) -> None:
    lock, over = client.rwlock("a"), asyncio.Event()

    async def read() -> None:
        while not over.is_set():
            async with lock.read():
                await asyncio.sleep(0)

    async with lock.read() as lease:
        readers = [asyncio.create_task(read()) for _ in range(5)]
        upgrade = asyncio.create_task(lease.upgrade())
        async with asyncio.timeout(10):
            while not upgrade.done():
                clock.advance(0.01)
                await asyncio.sleep(0.001)
        await upgrade
        assert lease.mode == "write"
        over.set()
    await asyncio.gather(*readers)


async def test_priorities_count_for_both(client: Client) -> None:
    lock, served = client.rwlock("a"), []
    held = await lock.write().acquire()

    async def come(side: Any, priority: int) -> None:
        async with side.acquire(priority=priority):
            served.append(priority)

    tasks = []
    for side, priority in ((lock.read(), 0), (lock.write(), 1), (lock.read(), 2)):
        tasks.append(asyncio.create_task(come(side, priority)))
        while (await lock.status()).waiting < len(tasks):
            await asyncio.sleep(0)
    writer = (await lock.status()).waiters[1]
    assert (writer.priority, writer.units) == (1, MANY), (
        "a writer with a priority takes all as well"
    )
    await held.release()
    await asyncio.gather(*tasks)
    assert served == [2, 1, 0]


# ---- help ----------------------------------------------------------------------------------------


@in_both_worlds
async def test_a_reader_that_wants_to_write_is_told_how(w: World) -> None:
    lock = w.client.rwlock("a")
    lease = await w.get(lock.read().acquire())
    with pytest.raises(Reentrant, match=r"upgrade\(\) the lease that is held"):
        await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="pass the lease on"):
        await w.get(lock.read().acquire(wait=5))
    with pytest.raises(AcquireTimeout, match="by this very task or thread"):
        await w.get(lock.write().acquire(wait=0))
    await w.get(lease.release())
    await w.get((await w.get(lock.write().acquire())).release())


@in_both_worlds
async def test_units_are_not_for_the_user_to_choose(w: World) -> None:
    for side in (w.client.rwlock("a").read(), w.client.rwlock("a").write()):
        with pytest.raises(ValueError, match="a reader takes one, a writer all"):
            await w.get(side.acquire(units=2))


@in_both_worlds
async def test_a_test_can_let_it_expire_or_have_it_stolen(w: World) -> None:
    lock = w.client.rwlock("a")
    lease = await w.get(lock.read().acquire())
    assert expire(lock) == 1
    assert lease.lost
    assert not await w.get(lock.locked())
    other = await w.get(lock.read().acquire())
    assert steal(lock) > other.token
    assert other.lost
    assert await w.get(lock.read().try_acquire()) is None, "a thief is alone"


def test_both_sides_are_described_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_RWLOCK__CART__TTL", "50s")
    for module in (World("async").module, World("sync").module):
        lock = module.RWLock("cart", wait=5, note="why")
        assert lock.read().config == lock.write().config == lock.config
        assert (lock.config.ttl, lock.config.wait, lock.config.note) == (50, 5, "why")
        assert (lock.key, lock.name) == (b"rwlock:cart", "cart")
        assert lock.read().key == lock.write().key == lock.key
        plain = module.RWLock.from_config("cart", LockConfig())
        assert plain.read().config == plain.write().config == LockConfig()
        assert repr(plain) == "<RWLock rwlock cart>"
        with pytest.raises(TypeError, match="did you mean wait="):
            module.RWLock("cart", timeout=3)


def test_the_lock_itself_is_not_entered() -> None:
    for world in ("async", "sync"):
        w = World(world)
        with pytest.raises(TypeError, match=r"`with RWLock\('a'\).read\(\)` or"):
            w.module.RWLock("a").__enter__()
        with pytest.raises(TypeError, match=r"`async with RWLock\('a'\).read\(\)` or"):
            asyncio.run(w.module.RWLock("a").__aenter__())
