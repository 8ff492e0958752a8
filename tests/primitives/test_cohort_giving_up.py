"""A cancelled or timed-out member of a cohort leaves nothing behind, at whatever point that came."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dibs.sync
from dibs import AcquireTimeout, Client, Lease, Lock
from dibs.backends import store_for
from dibs.hub import Hub
from tests.runtime.stores import TappedStore

TURNS = 60


class Site:
    """A store that takes its time, a client whose tasks are cancelled, and another that looks."""

    def __init__(self, store: Any) -> None:
        self.mine = Client(Hub(store))
        self.others = Client(Hub(getattr(store, "inner", store)))
        self.names = (f"key-{number}" for number in range(10**9))
        self.inside = 0

    def lock(self, name: str) -> Lock:
        return self.mine.lock(name, cohort=4)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else is inside."""
        self.inside += 1
        assert self.inside == 1
        try:
            yield
        finally:
            self.inside -= 1

    async def nothing_is_left(self, name: str) -> None:
        """The key is free at once for anybody, and nobody holds it or waits for it, here or there."""
        await asyncio.to_thread(self.mine.hub.keeper.flush, 10)
        status = await self.others.status(name)
        assert (status.holders, status.waiters) == ((), ())
        lease = await self.others.lock(name).try_acquire()
        assert lease is not None
        await lease.release()
        runtime = self.mine.hub.loop_runtime()
        assert runtime.cohorts == {}
        assert self.mine.hub.keeper.leases() == []
        assert len(runtime.holding) == 0

    async def close(self) -> None:
        await self.mine.close()
        await self.others.close()


@pytest.fixture(params=["memory", "memory, slow", "sqlite"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    if request.param == "sqlite":
        site = Site(store_for(f"sqlite:///{tmp_path / 'leases.db'}"))
    else:
        site = Site(TappedStore(turns=2 if "slow" in request.param else 0))
    yield site
    await site.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def gone(task: "asyncio.Task[Lease]") -> bool:
    """Cancel a task now; whatever it had got is released. Tells whether it was still at work."""
    task.cancel()
    try:
        lease = await task
    except asyncio.CancelledError:
        return True
    await lease.release()
    return False


async def holds(task: "asyncio.Task[Lease]") -> None:
    """It gets the lock after all, and soon."""
    async with asyncio.timeout(4):
        lease = await task
    lease.ensure()
    await lease.release()


@pytest.mark.parametrize("who", ["first", "second", "last"])
async def test_at_every_turn_while_another_holds(site: Site, who: str) -> None:
    """The holder in another process leaves half-way, so that grants are pushed to whoever leaves."""
    hit = 0
    for at in range(TURNS):
        name = next(site.names)
        held = await site.others.lock(name).acquire()
        lock = site.lock(name)
        waiting = {
            each: asyncio.ensure_future(lock.acquire()) for each in ("first", "second", "last")
        }
        for turn in range(at):
            if turn == at // 2:
                await held.release()
            await asyncio.sleep(0)
        leaving = waiting.pop(who)
        hit += await gone(leaving)
        if held.remaining:
            await held.release()
        for task in waiting.values():
            await holds(task)
        await site.nothing_is_left(name)
    assert hit > 1


@pytest.mark.parametrize("who", ["second", "third", "last"])
async def test_at_every_turn_while_it_is_passed_on(site: Site, who: str) -> None:
    hit = 0
    for at in range(12):
        for release_first in (True, False):
            name = next(site.names)
            lock = site.lock(name)
            first = await lock.acquire()
            waiting = {
                each: asyncio.ensure_future(lock.acquire()) for each in ("second", "third", "last")
            }
            await turns(3)
            if release_first:
                await first.release()
                await turns(at)
            leaving = waiting.pop(who)
            leaving.cancel()
            if not release_first:
                await turns(at)
                await first.release()
            hit += await gone(leaving)
            for task in waiting.values():
                await holds(task)
            await site.nothing_is_left(name)
    assert hit > 1


async def test_cancelled_in_the_same_turn_as_it_is_given(site: Site) -> None:
    """It is in its hands already, and goes on to the next with the next token."""
    name = next(site.names)
    lock = site.lock(name)
    first = await lock.acquire()
    second, third = (asyncio.ensure_future(lock.acquire()) for _ in range(2))
    await turns(3)
    await first.release()
    second.cancel()
    await asyncio.wait((second,))
    assert second.cancelled()
    lease = await third
    assert lease._id == first._id
    assert lease.token == first.token + 2
    await lease.release()
    await site.nothing_is_left(name)


async def test_all_are_cancelled_at_once(site: Site) -> None:
    for at in range(TURNS // 2):
        name = next(site.names)
        lock = site.lock(name)
        held = await lock.acquire()
        tasks = [asyncio.ensure_future(lock.acquire()) for _ in range(9)]
        await turns(at)
        await held.release()
        await turns(at % 3)
        for task in tasks:
            task.cancel()
        for got in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(got, Lease):
                await got.release()
        await site.nothing_is_left(name)


async def test_a_task_that_is_destroyed_in_line_is_no_member_any_more(site: Site) -> None:
    name = next(site.names)
    lock = site.lock(name)
    held = await asyncio.ensure_future(lock.acquire())
    acquiring = lock.acquire()
    acquiring.send(None)  # it waits in line, and nobody will ever resume it
    other = asyncio.ensure_future(lock.acquire())
    await turns(2)
    acquiring.close()
    await held.release()
    await holds(other)
    await site.nothing_is_left(name)


async def test_a_thousand_cancellations_at_random_times_under_contention(site: Site) -> None:
    dice = random.Random(42)
    name = next(site.names)
    lock = site.lock(name)
    done = {"held": 0, "cancelled": 0}
    tokens: list[int] = []

    async def worker() -> None:
        try:
            async with asyncio.timeout(dice.random() * 0.05):
                async with lock as lease:
                    with site.alone():
                        tokens.append(lease.token)
                        done["held"] += 1
                        await asyncio.sleep(dice.random() * 0.002)
                        lease.ensure()
        except TimeoutError:
            done["cancelled"] += 1

    for _ in range(20):
        await asyncio.gather(*(worker() for _ in range(50)))
    await site.nothing_is_left(name)
    assert tokens == sorted(set(tokens))
    assert done["cancelled"] > 50, done
    assert done["held"] > 50, done


def test_threads_that_give_up_at_random_times(tmp_path: Path) -> None:
    """Each gives up at about the time when it would be served."""
    client = dibs.sync.connect(f"sqlite:///{tmp_path / 'leases.db'}")
    lock = client.lock("a", cohort=4)
    tokens: list[int] = []
    inside: list[int] = []
    trouble: list[str] = []
    done = {"held": 0, "gave up": 0}

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(150):
            try:
                lease = lock.acquire(wait=dice.random() * 0.01)
            except AcquireTimeout:
                done["gave up"] += 1
                continue
            inside.append(seed)
            tokens.append(lease.token)
            if len(inside) > 1:
                trouble.append(f"{inside} at once")
            time.sleep(dice.random() * 0.002)
            inside.remove(seed)
            lease.release()
            done["held"] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert tokens == sorted(set(tokens))
    assert min(done.values()) > 100, done
    client.hub.keeper.flush(10)
    status = lock.status()
    assert (status.holders, status.waiters) == ((), ())
    assert client.hub.thread_runtime().cohorts == {}
    client.close()


async def test_a_thousand_time_outs_leave_nothing(site: Site) -> None:
    dice = random.Random(42)
    name = next(site.names)
    held = await site.others.lock(name).acquire()

    async def worker() -> None:
        with pytest.raises(AcquireTimeout, match=rf"token {held.token}.*gave up after"):
            await site.lock(name).acquire(wait=dice.random() * 0.05)

    for _ in range(10):
        await asyncio.gather(*(worker() for _ in range(100)))
    status = await site.others.status(name)
    assert [holder.token for holder in status.holders] == [held.token]
    assert status.waiting == 0
    await held.release()
    await site.nothing_is_left(name)
