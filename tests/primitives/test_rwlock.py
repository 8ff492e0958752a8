"""Readers and writers: who comes next, and what helps users."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import (
    AcquireTimeout,
    Client,
    Deadlock,
    LockConfig,
    Reentrant,
)
from dibs.backends.memory import MemoryBackend
from dibs.model import MANY, Command, Failed
from dibs.testing import ManualClock, expire, steal
from tests.primitives.rwlocks import resizes, units
from tests.primitives.worlds import World, in_both_worlds

# ---- who comes next -------------------------------------------------------------------------------


async def line_up(client: Client, wanted: str) -> list[str]:
    """Let these readers and writers queue behind a writer; who is inside together, turn by turn."""
    inside: dict[str, asyncio.Event] = {}
    lock = client.rwlock("a")
    held = await lock.write().acquire()

    async def come(which: str) -> None:
        async with lock.read() if which.islower() else lock.write():
            leave = inside[which] = asyncio.Event()
            await leave.wait()

    tasks = []
    for number, which in enumerate(wanted):
        tasks.append(asyncio.create_task(come(which)))
        while (await lock.status()).waiting <= number:
            await asyncio.sleep(0)
    await held.release()
    together: list[str] = []
    while not all(task.done() for task in tasks):
        for _ in range(50):
            await asyncio.sleep(0)
        together.append("".join(sorted(inside)))
        for leave in inside.values():
            leave.set()
        inside.clear()
    return [turn for turn in together if turn]


@pytest.mark.parametrize(
    ("wanted", "turns"),
    [
        ("abc", ["abc"]),
        ("ABC", ["A", "B", "C"]),
        ("abCde", ["ab", "C", "de"]),  # readers that come later do not pass a writer
        ("AbcDeF", ["A", "bc", "D", "e", "F"]),  # writers that come later pass no reader
    ],
)
async def test_readers_together_and_writers_alone_in_order_of_arrival(
    client: Client, wanted: str, turns: list[str]
) -> None:
    assert await line_up(client, wanted) == turns


async def test_readers_without_end_do_not_starve_a_writer(client: Client) -> None:
    lock, over, served = client.rwlock("a"), asyncio.Event(), 0

    async def read() -> None:
        nonlocal served
        while not over.is_set():
            async with lock.read():
                served += 1
                await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(5)]
    async with asyncio.timeout(10):
        for _ in range(20):
            async with lock.write():
                assert (await lock.status()).holders[0].units == MANY
                await asyncio.sleep(0)
    over.set()
    await asyncio.gather(*readers)
    assert served >= 20


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


async def test_the_second_upgrade_names_the_other(client: Client, clock: ManualClock) -> None:
    first = await asyncio.create_task(client.rwlock("a", label="one").read().acquire())
    second = await client.rwlock("a", label="two").read().acquire()
    waiting = asyncio.create_task(first.upgrade())
    while not (await client.status("a", "rwlock")).waiting:
        await asyncio.sleep(0)
    with pytest.raises(Deadlock) as caught:
        await second.upgrade()
    assert [holder.owner.rpartition("/")[2] for holder in caught.value.holders] == ["one"]
    assert caught.value.key == b"rwlock:a"
    assert (await client.status("a", "rwlock")).waiting == 1, "the first goes on"
    await second.release()
    while not waiting.done():
        clock.advance(0.1)
        await asyncio.sleep(0)
    await waiting
    assert first.mode == "write"
    await first.release()


@in_both_worlds
async def test_a_downgrade_of_a_busy_key_is_made_later(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a transaction of somebody's own keeps the key."""
    lease = await w.get(w.client.rwlock("a").write().acquire())
    shelf, honest = w.store._shelf, w.store._shelf.apply

    def busy(commands: Sequence[Command]) -> list[Any]:
        return [
            Failed("busy", "planted") if resizes(command) else honest([command])[0]
            for command in commands
        ]

    for backend in [b for b in gc.get_objects() if type(b) is MemoryBackend and b._shelf is shelf]:
        monkeypatch.setattr(backend, "apply_now", busy)
    monkeypatch.setattr(shelf, "apply", busy)
    await w.get(lease.downgrade())
    assert lease.mode == "read"
    w.clock.advance(2)
    assert await units(w) == [MANY]
    monkeypatch.undo()
    w.clock.advance(2)
    assert await units(w) == [1]
    await w.get(lease.release())
