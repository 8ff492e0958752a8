"""Waiting in turn: who comes next, what a time-out tells, and what a pushed grant is worth."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from dibs import AcquireTimeout, Client, DibsError, connect
from dibs.hub import Hub
from dibs.model import Renew
from dibs.testing import ManualClock
from tests.runtime.stores import TappedStore


async def queued(client: Client, name: str, count: int) -> None:
    """Wait until so many are in the queue."""
    while (await client.status(name)).waiting < count:
        await asyncio.sleep(0)


async def test_a_time_out_tells_the_holder_and_who_is_ahead(
    client: Client, clock: ManualClock
) -> None:
    held = await client.lock("a", label="holder", ttl=300).acquire()
    clock.advance(41)
    first = [asyncio.create_task(client.lock("a", ttl=300).acquire()) for _ in range(2)]
    await queued(client, "a", 2)
    last = asyncio.create_task(client.lock("a", ttl=300).acquire(wait=7))
    await queued(client, "a", 3)
    clock.advance(7)
    with pytest.raises(AcquireTimeout, match=r"2 are ahead of you; gave up after 7 s") as caught:
        await last
    assert "/holder for 48 s" in str(caught.value)
    assert caught.value.position == 2
    assert (await client.status("a")).waiting == 2, "it has left the queue"
    await held.release()
    for task in first:
        await (await task).release()


async def test_wait_takes_durations_of_every_kind(client: Client, clock: ManualClock) -> None:
    held = await client.lock("a", ttl=3000).acquire()
    for wait in ("5s", 5, 5.0):
        task = asyncio.create_task(client.lock("a").acquire(wait=wait))
        await queued(client, "a", 1)
        clock.advance(4.9)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.2)
        with pytest.raises(AcquireTimeout):
            await task
    for wrong in (True, -1, float("nan"), "soon", [5]):
        with pytest.raises((TypeError, ValueError)):
            await client.lock("a").acquire(wait=wrong)  # type: ignore[arg-type]
    await held.release()


async def test_a_waiter_whose_request_grew_too_large_is_told(client: Client) -> None:
    held = await client.semaphore("s", 3).acquire()
    task = asyncio.create_task(client.semaphore("s", 3).acquire(units=3))
    while not (await client.status("s", "semaphore")).waiting:
        await asyncio.sleep(0)
    smaller = await client.semaphore("s", 2).acquire(wait=0)
    async with asyncio.timeout(10):
        with pytest.raises(DibsError, match="capacity"):
            await task
    await held.release()
    await smaller.release()


class Pushed:
    """A grant that came by a push, and every renewal of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = TappedStore(clock=self.clock)
        self.client: Any = Client(Hub(self.store, clock=self.clock))

    async def lease(self, ttl: float) -> Any:
        held = await self.client.lock("a").acquire()
        task = asyncio.create_task(self.client.lock("a", ttl=ttl).acquire())
        await queued(self.client, "a", 1)
        await held.release()
        lease = await task
        self.store.kept.clear()
        self.store.batches.clear()
        return lease

    def claims(self, lease: Any) -> int:
        batches = (*self.store.kept, *self.store.batches)
        return sum(isinstance(c, Renew) and c.id == lease._id for b in batches for c in b)


@pytest.mark.parametrize("ttl", [30, 3000])
async def test_a_pushed_grant_is_claimed_only_if_it_is_held_for_a_third_of_its_window(
    ttl: float,
) -> None:
    site = Pushed()
    short = await site.lease(ttl)
    assert 0 < short.remaining < 5
    site.clock.advance(1.4)
    await short.release()
    site.clock.advance(10)
    assert site.claims(short) == 0, "short holds never pay for it"
    long = await site.lease(ttl)
    site.clock.advance(2)
    assert site.claims(long) == 1
    assert long.remaining > 20
    await long.release()
    await site.client.close()


async def test_a_hundred_waiters_pass_a_key_on_without_a_gap() -> None:
    """Real time: each is told by a push, none has to ask again."""
    client: Any = connect(f"memory://{uuid4()}")
    lock = client.lock("a")
    served: list[int] = []

    async def wait(number: int) -> None:
        async with lock:
            served.append(number)

    async with asyncio.timeout(5):
        await asyncio.gather(*(wait(number) for number in range(100)))
    assert served == list(range(100))
    await client.close()
