"""A cancelled or timed-out acquire leaves nothing behind, at whatever point that came."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dibs import AcquireTimeout, AllOf, Client
from dibs.backends import store_for
from dibs.hub import Hub
from dibs.model import Status
from tests.runtime.stores import TappedStore

TRIES = 1000


class Site:
    """A store that takes its time, a client to be cancelled, and another that looks."""

    def __init__(self, store: Any) -> None:
        self.mine = Client(Hub(store))
        self.others = Client(Hub(getattr(store, "inner", store)))
        self.names = (f"key-{number}" for number in range(10**9))

    async def nothing_is_left(self, name: str) -> None:
        """The key is free at once for anybody, and nobody holds it or waits for it."""
        keeper = self.mine.hub.keeper
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


class Nothing:
    """What is left to release of leases that were released."""

    async def release(self) -> None: ...


async def released(leases: Any) -> Nothing:
    await leases.release()
    return Nothing()


async def test_at_every_point_of_a_release_of_several(site: Site) -> None:
    points = 0
    for turns in range(1, 20):  # at 0 the task would never begin
        names, lock = one_or_three(site.mine, next(site.names), several=True)
        points += await cancel_after(released(await lock.acquire()), turns)
        for name in names:
            await site.nothing_is_left(name)
    assert points > 1


async def test_a_thousand_cancellations_at_random_times_under_contention(site: Site) -> None:
    dice = random.Random(42)
    name = next(site.names)
    lock = site.mine.lock(name)
    done = {"held": 0, "cancelled": 0}

    async def worker() -> None:
        try:
            async with asyncio.timeout(dice.random() * 0.05):
                async with lock:
                    done["held"] += 1
                    await asyncio.sleep(dice.random() * 0.002)
        except TimeoutError:
            done["cancelled"] += 1

    for _ in range(TRIES // 50):
        await asyncio.gather(*(worker() for _ in range(50)))
    await site.nothing_is_left(name)
    assert done["cancelled"] > TRIES / 20, done
    assert done["held"] > TRIES / 20, done


async def test_a_thousand_time_outs_leave_nothing(site: Site) -> None:
    dice = random.Random(42)
    names = [f"{uuid4()}" for _ in range(20)]
    held = [await site.others.lock(name).acquire() for name in names]

    async def worker(name: str) -> None:
        with pytest.raises(AcquireTimeout):
            await site.mine.lock(name).acquire(wait=dice.random() * 0.05)

    await asyncio.gather(*(worker(names[number % 20]) for number in range(TRIES)))
    for lease, name in zip(held, names, strict=True):
        status = await site.others.status(name)
        assert [holder.token for holder in status.holders] == [lease.token]
        assert status.waiting == 0
        await lease.release()
        await site.nothing_is_left(name)
