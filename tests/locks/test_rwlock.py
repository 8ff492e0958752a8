"""Readers and writers: who comes next, and what helps users."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import (
    AcquireTimeout,
    BackendUnavailable,
    Client,
    LeaseLost,
    LockConfig,
    NotHeld,
    Reentrant,
)
from dibs.core.names import fingerprint
from dibs.model import MANY, Acquire, Command, Granted, Release, Resize
from dibs.runtime.port import TimedReply
from dibs.session import StoreSession
from dibs.testing import ManualClock, expire, steal
from tests.locks.test_rwlock_properties import failing, heal, resizes, site, units
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore

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


async def test_an_upgrade_is_notified_and_asks_no_more_often_than_any_waiter(
    clock: ManualClock,
) -> None:
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    lock = client.rwlock("a", ttl=30)
    reader = await asyncio.create_task(lock.read().acquire())
    async with lock.read() as lease:
        upgrade = asyncio.create_task(lease.upgrade())
        while not (await lock.status()).waiting:
            await asyncio.sleep(0)
        asked: list[Command] = []
        store.before = asked.extend
        for _ in range(600):
            clock.advance(0.1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        heartbeats = [command for command in asked if isinstance(command, Acquire)]
        assert 20 < len(heartbeats) < 60, "one every third of a claim timeout"
        assert not any(isinstance(command, Resize) for command in asked)
        newcomer = asyncio.create_task(lock.read().acquire())
        while (await lock.status()).waiting < 2:
            await asyncio.sleep(0)
        await reader.release()
        async with asyncio.timeout(5):
            await upgrade  # although the clock stands still
        assert lease.mode == "write"
        assert not newcomer.done()
    await (await newcomer).release()
    assert (await lock.status()).waiting == 0
    await client.close()


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
    with pytest.raises(AcquireTimeout, match="by this task or thread"):
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


async def upgraded_in_vain(w: World, store: TappedStore, lease: Any) -> None:
    """The store has made it the writer, and goes away before anybody hears of it."""

    def fail(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            store.before = failing(lambda _: True)
            raise BackendUnavailable("planted")

    store.after = fail
    with pytest.raises(BackendUnavailable):
        await w.get(lease.upgrade(wait=0))
    assert lease.mode == "read"
    assert await units(w) == [MANY]


@pytest.mark.parametrize("auto_renew", [True, False])
@in_both_worlds
async def test_an_upgrade_whose_answer_is_lost_is_taken_back(w: World, auto_renew: bool) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a", auto_renew=auto_renew).read().acquire())
    await upgraded_in_vain(w, store, lease)
    w.clock.advance(6)
    assert await units(w) == [MANY]
    heal(store)
    w.clock.advance(2)
    assert await units(w) == [1]
    assert not lease.lost
    w.clock.advance(60)
    assert lease.lost is not auto_renew
    await w.get(lease.release())


@in_both_worlds
async def test_a_second_try_finds_that_the_first_was_granted(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a").read().acquire())
    await upgraded_in_vain(w, store, lease)
    heal(store)
    await w.get(lease.upgrade(wait=0))
    status = await w.get(w.client.status("a", "rwlock"))
    assert (lease.mode, lease.token) == ("write", status.last_token)
    w.clock.advance(60)
    assert await units(w) == [MANY], "what was to be taken back is void"
    lease.ensure()
    await w.get(lease.release())


@in_both_worlds
async def test_a_downgrade_during_an_outage_is_made_later(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a").write().acquire())
    store.before = failing(resizes)
    await w.get(lease.downgrade())
    assert lease.mode == "read", "nobody writes any more, whatever the store knows"
    assert await units(w) == [MANY]
    heal(store)
    w.clock.advance(2)
    assert await units(w) == [1]
    await w.get(lease.release())


async def test_an_upgrade_outlives_a_short_outage(clock: ManualClock) -> None:
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    async with client.rwlock("a").read() as lease:
        store.before = failing(lambda _: True)
        upgrade = asyncio.create_task(lease.upgrade(wait=5))
        for _ in range(10):
            clock.advance(0.1)
            await asyncio.sleep(0)
        assert not upgrade.done()
        heal(store)
        while not upgrade.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        await upgrade
        assert lease.mode == "write"
    await client.close()


@pytest.mark.parametrize(("wait", "after"), [(3, 3), (None, 10)])
async def test_an_upgrade_gives_up_on_a_longer_one(
    clock: ManualClock, wait: float | None, after: float
) -> None:
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    lease = await client.rwlock("a").read().acquire()
    store.before = failing(lambda _: True)
    began = clock.now()
    upgrade = asyncio.create_task(lease.upgrade(wait=wait))
    while not upgrade.done():
        clock.advance(0.05)
        await asyncio.sleep(0)
    with pytest.raises(BackendUnavailable):
        await upgrade
    assert after <= clock.now() - began < after + 0.5
    assert lease.mode == "read"
    heal(store)
    await lease.release()
    await client.close()


async def test_a_cancelled_upgrade_leaves_the_queue(client: Client, clock: ManualClock) -> None:
    lock = client.rwlock("a")
    async with lock.read() as lease:
        other = asyncio.create_task(lock.read().acquire())
        reader = await other
        upgrade = asyncio.create_task(lease.upgrade())
        while not (await lock.status()).waiting:
            await asyncio.sleep(0)
        upgrade.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upgrade
        assert client.session.keeper.flush(5)
        assert (await lock.status()).waiting == 0
        assert lease.mode == "read"
        lease.ensure()
        await reader.release()


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_cancelled_at_any_moment_it_leaves_nothing(clock: ManualClock, turns: int) -> None:
    store = TappedStore(clock=clock, turns=3)
    client: Any = Client(StoreSession(store, clock=clock))
    lock = client.rwlock("a")
    reader = await asyncio.create_task(lock.read().acquire())
    lease = await lock.read().acquire()
    upgrade = asyncio.create_task(lease.upgrade())
    for turn in range(turns):
        await asyncio.sleep(0)
        if turn == 40:  # it waits by now, and may go on
            await reader.release()
        clock.advance(0.001)
    upgrade.cancel()
    await asyncio.wait([upgrade])
    clock.advance(1)
    assert client.session.keeper.flush(5)
    status = await lock.status()
    assert status.waiting == 0
    taken = {holder.lease: holder.units for holder in status.holders}
    assert taken[fingerprint(lease._id)] == (MANY if lease.mode == "write" else 1)
    lease.ensure()
    await reader.release()
    await lease.release()
    assert not await lock.locked()
    await client.close()


def test_an_interrupt_leaves_nothing() -> None:
    w = World("sync")
    store, client = site(w)
    lease = client.rwlock("a").read().acquire()

    def interrupt(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            heal(store)
            raise KeyboardInterrupt

    for hook in ("before", "after"):
        setattr(store, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.upgrade(wait=0)
        assert lease.mode == "read"
        w.clock.advance(1)
        assert [holder.units for holder in client.rwlock("a").status().holders] == [1]
    lease.upgrade()
    for hook in ("before", "after"):
        setattr(store, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.downgrade()
        assert lease.mode == "read"
        w.clock.advance(1)
        assert [holder.units for holder in client.rwlock("a").status().holders] == [1]
        lease.upgrade()
    assert lease.release()


async def test_a_waiting_upgrade_keeps_its_place_until_it_is_served(
    client: Client, clock: ManualClock
) -> None:
    """The place is believed only while it speaks up, for as long as the wait takes."""
    lock = client.rwlock("a", ttl="3s")
    reader = await asyncio.create_task(lock.read().acquire())
    async with lock.read() as lease:
        upgrade = asyncio.create_task(lease.upgrade())
        for _ in range(600):
            clock.advance(0.1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        (place,) = (await lock.status()).waiters
        assert place.note == "waits to upgrade the lease that it reads under"
        assert await asyncio.create_task(lock.read().try_acquire()) is None
        await reader.release()
        while not upgrade.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        await upgrade
        assert (await lock.status()).waiting == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_an_upgrade_whose_place_has_ended_takes_another(
    clock: ManualClock, ends: bool
) -> None:
    """As when the process stood still while it asked for it, and it went with its patience.

    A late copy of what asked for a place finds it buried.
    """
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    connection = store.inner.blocking_connection()
    late: list[Command] = []

    def end_the_first(commands: Sequence[Command]) -> None:
        for each in commands:
            if isinstance(each, Acquire) and each.note.startswith("waits to upgrade") and not late:
                late.append(each)
                if ends:
                    connection.apply([Release(each.key, each.id, tombstone=60)], 10)
                raise BackendUnavailable("planted")

    lock = client.rwlock("a")
    reader = await asyncio.create_task(lock.read().acquire())
    async with lock.read() as lease:
        store.before = end_the_first
        upgrade = asyncio.create_task(lease.upgrade())
        while not (await lock.status()).waiting and not upgrade.done():
            clock.advance(0.05)
            await asyncio.sleep(0)
        await reader.release()
        while not upgrade.done():
            clock.advance(0.05)
            await asyncio.sleep(0)
        await upgrade
        assert lease.mode == "write"
        connection.apply(late, 10)
        assert (await lock.status()).waiting == 0
    await client.close()


async def test_a_claim_whose_answer_comes_after_the_upgrade_is_no_loss(
    client: Client, clock: ManualClock
) -> None:
    async with client.rwlock("a").read() as lease:
        claimed = TimedReply(Granted(lease.token, (), 30.0), clock.now())
        clock.advance(1)
        await lease.upgrade()
        lease._renewed(claimed)
        lease.ensure()
        assert lease.mode == "write"


async def test_an_upgrade_ends_with_its_lease(client: Client, clock: ManualClock) -> None:
    lock = client.rwlock("a", ttl="3s", auto_renew=False)
    reader = await asyncio.create_task(client.rwlock("a").read().acquire())
    lease = await lock.read().acquire()
    upgrade = asyncio.create_task(lease.upgrade())
    while not upgrade.done():
        clock.advance(0.1)
        await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        await upgrade
    assert client.session.keeper.flush(5)
    assert (await lock.status()).waiting == 0
    await reader.release()


@in_both_worlds
async def test_what_has_ended_is_not_changed(w: World) -> None:
    lease = await w.get(w.client.rwlock("a").read().acquire())
    await w.get(lease.release())
    for change in (lease.upgrade, lease.downgrade):
        with pytest.raises(NotHeld):
            await w.get(change())


@in_both_worlds
async def test_nothing_is_asked_where_nothing_would_change(w: World) -> None:
    store, client = site(w)
    lock = client.rwlock("a")
    reader = await w.get(lock.read().acquire())
    store.batches.clear()
    store.kept.clear()
    await w.get(reader.downgrade())
    await w.get(reader.upgrade())
    first = reader.token
    await w.get(reader.upgrade())
    assert sum(map(len, (*store.batches, *store.kept))) == 1
    assert reader.token == first
    await w.get(reader.release())


@in_both_worlds
async def test_an_uncontended_cycle_is_two_commands(w: World) -> None:
    store, client = site(w)
    for side in (client.rwlock("a").read(), client.rwlock("a").write()):
        store.batches.clear()
        store.kept.clear()
        await w.get((await w.get(side.acquire())).release())
        sent = [type(command) for batch in (*store.batches, *store.kept) for command in batch]
        assert sent == [Acquire, Release]


async def test_one_try_passes_any_number_of_dead_readers(
    client: Client, clock: ManualClock
) -> None:
    """The store clears away only so many at a time."""
    runtime = client.session.loop_runtime()
    for number in range(500):
        await runtime.call(Acquire(b"rwlock:x", f"id{number}", "o", 5.0, capacity=MANY))
    clock.advance(60)
    lease = await client.rwlock("x").write().acquire(wait=0)
    await lease.release()


async def test_an_earlier_try_of_ones_own_is_no_other_reader() -> None:
    """A cancelled upgrade leaves the queue in the background, and the next one may find it there."""
    store = TappedStore()
    async with (
        Client(StoreSession(store)) as client,
        Client(StoreSession(store)) as another,
        asyncio.timeout(60),
    ):
        lease = await client.rwlock("a").read().acquire()
        other = await another.rwlock("a").read().acquire()
        for _ in range(10):
            upgrade = asyncio.create_task(lease.upgrade())
            while not (await client.rwlock("a").status()).waiting:
                await asyncio.sleep(0)
            upgrade.cancel()
            await asyncio.wait((upgrade,))
            with pytest.raises(AcquireTimeout):
                await lease.upgrade(wait=0.4)
        await other.release()
        await lease.upgrade()


async def test_an_upgrader_that_died_is_in_nobodys_way_for_longer_than_its_lease() -> None:
    store = TappedStore()
    async with Client(StoreSession(store)) as client, Client(StoreSession(store)) as another:
        lease = await client.rwlock("a", ttl=2).read().acquire()
        other = await another.rwlock("a", ttl=2).read().acquire()
        with pytest.raises(AcquireTimeout):
            await lease.upgrade(wait=0.01)
        await other.release()
        await lease.upgrade()
    queued = [c for batch in store.batches for c in batch if isinstance(c, Acquire) and c.queue]
    assert {command.waiter_ttl for command in queued if command.units > 1} == {2.0}
