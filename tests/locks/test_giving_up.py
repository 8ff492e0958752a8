"""A cancelled or timed-out acquire, upgrade or release leaves nothing behind, whenever that comes."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, AllOf, Client, LeaseLost
from dibs.core.names import fingerprint
from dibs.model import MANY, Status
from dibs.session import StoreSession
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from tests.locks.worlds import KINDS, World, in_both_worlds
from tests.runtime.stores import TappedStore

TRIES = 1000


class Site:
    """A store that takes its time, a client to be cancelled, and another that looks."""

    def __init__(self, store: Any) -> None:
        self.mine = Client(StoreSession(store))
        self.others = Client(StoreSession(getattr(store, "inner", store)))
        self.names = map("key-{}".format, count())

    async def nothing_is_left(self, name: str) -> None:
        """The key is free at once for anybody, and nobody holds it or waits for it."""
        keeper = self.mine.session.keeper
        await asyncio.to_thread(keeper.flush, 10)
        status: Status = await self.others.status(name)
        assert (status.holders, status.waiters) == ((), ())
        lease = await self.others.lock(name).try_acquire()
        assert lease is not None
        await lease.release()

    async def close(self) -> None:
        await self.mine.close()
        await self.others.close()


@pytest.fixture(params=["memory, slow", "sqlite"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    if request.param == "sqlite":
        site = Site(store_for(f"sqlite:///{tmp_path / 'leases.db'}"))
    else:
        site = Site(TappedStore(turns=2))
    yield site
    await site.close()


async def cancel_after(coroutine: Any, turns: int) -> bool:
    """Cancel a task after so many turns of the loop; tell whether it was still at work."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    over = task.done()
    task.cancel()
    try:
        lease = await task
    except asyncio.CancelledError:
        return True
    except AcquireTimeout:
        return not over
    await lease.release()
    return not over


def one_or_three(client: Any, name: str, *, several: bool) -> tuple[list[str], Any]:
    """Names of a test's own, and what acquires them: several in another order than that of their keys."""
    if not several:
        return [name], client.lock(name)
    names = [f"{name}-{letter}" for letter in "abc"]
    return names, AllOf(*(client.lock(each) for each in reversed(names)))


@pytest.mark.parametrize("several", [False, True], ids=["lock", "AllOf"])
async def test_at_every_point_of_an_acquire_that_succeeds(site: Site, several: bool) -> None:
    points = 0
    for turns in count():
        names, lock = one_or_three(site.mine, next(site.names), several=several)
        cancelled = await cancel_after(lock.acquire(), turns)
        for name in names:
            await site.nothing_is_left(name)
        points += cancelled
        if not cancelled and turns > 20:
            break
        assert turns < 10_000
    assert points > 1


@pytest.mark.parametrize(("several", "taken"), [(False, 0), (True, 0), (True, 1), (True, 2)])
async def test_at_every_point_of_a_wait_in_the_queue(site: Site, several: bool, taken: int) -> None:
    """The holder of one leaves at some turn, so that grants are pushed to whoever is cancelled."""
    for turns in range(0, 60, 2 if several else 1):
        names, lock = one_or_three(site.mine, next(site.names), several=several)
        held = await site.others.lock(names[taken]).acquire()
        waiting = asyncio.ensure_future(lock.acquire())
        for turn in range(turns):
            if turn == turns // 2:
                await held.release()
            await asyncio.sleep(0)
        await held.release()
        await cancel_after(waiting, 0)
        for name in names:
            await site.nothing_is_left(name)


@pytest.mark.parametrize("turns", [*range(0, 20, 2), *range(20, 60, 5)])
async def test_at_every_point_of_an_upgrade(clock: ManualClock, turns: int) -> None:
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


async def test_a_thousand_cancellations_and_time_outs_leave_nothing(site: Site) -> None:
    dice = random.Random(42)
    name = next(site.names)
    lock = site.mine.lock(name)
    ends: Counter[type] = Counter()

    async def worker() -> None:
        limits = [None, dice.random() * 0.05]
        dice.shuffle(limits)
        try:
            async with asyncio.timeout(limits[0]), lock.acquire(wait=limits[1]):
                await asyncio.sleep(dice.random() * 0.002)
        except TimeoutError as error:
            ends[type(error)] += 1

    for _ in range(TRIES // 50):
        await asyncio.gather(*(worker() for _ in range(50)))
    await site.nothing_is_left(name)
    assert min(ends[kind] for kind in (TimeoutError, AcquireTimeout)) > TRIES / 40, ends
    assert ends.total() < TRIES, "some held it"


TTL = 30.0

SAID = "is not renewed any more: the task or thread that entered its block has ended"


async def elsewhere(w: World, body: Coroutine[Any, Any, None]) -> None:
    """Run it in a task that fails after it, or in a thread that ends after it."""

    async def fail() -> None:
        await body
        raise ZeroDivisionError

    if w.is_async:
        with suppress(ZeroDivisionError):
            await asyncio.create_task(fail())
    else:
        thread = threading.Thread(target=lambda: w.run(body))
        thread.start()
        thread.join()


@pytest.mark.parametrize("kind", ["lock", "reentrant", "rwlock", "leader", "allof"])
@in_both_worlds
async def test_a_block_whose_task_failed_or_whose_thread_is_dead_is_renewed_no_more(
    w: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    primitive, adopted = KINDS[kind](w.client, ttl=TTL), w.client.lock("adopted", ttl=TTL)
    leases: list[Any] = []

    async def body() -> None:
        leases.append(await w.get(w.client.lock("bare", ttl=TTL).acquire()))
        leases.append(await w.enter(adopted))
        leases.append(await w.enter(primitive))

    await elsewhere(w, body())
    lease = leases.pop()
    leases[1].adopt()
    w.clock.advance(TTL + 1)
    assert lease.reason == "expired"
    said = [message for message in caplog.messages if SAID in message]
    assert len(said) == (2 if kind == "allof" else 1)
    other = KINDS[kind](w.another(), ttl=TTL)
    await w.enter(other)
    await w.leave(other)
    with pytest.raises(LeaseLost):
        await w.leave(primitive)
    for standing in leases:
        standing.ensure()
    await w.leave(adopted)
    await w.get(leases[0].release())
    leases.clear()


async def test_a_fixture_holds_its_lease_after_the_task_that_entered_it(w: World) -> None:
    """As pytest-asyncio runs them: one task to the yield, and another from there."""
    lock = w.client.lock("a", ttl=TTL)

    @asynccontextmanager
    async def fixture() -> AsyncIterator[dibs.Lease]:
        async with lock as lease:
            yield lease

    manager = fixture()
    lease = await asyncio.create_task(manager.__aenter__())
    w.clock.advance(10 * TTL)
    lease.ensure()
    await asyncio.create_task(manager.__aexit__(None, None, None))
    assert not await lock.locked()
