"""Holds that were acquired again: how all of them end, and who is told."""

import asyncio
import threading
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LeaseLost, NotHeld, Reentrant
from dibs.locks.reentrant import Depth
from dibs.testing import ManualClock
from tests.locks.elections import eventually, outage, site
from tests.locks.test_reentrant import free, lock_of
from tests.locks.worlds import World, in_both_worlds


@in_both_worlds
async def test_renewed_by_one_it_is_renewed_for_all(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    w.clock.advance(3600)
    assert not outer.lost
    await w.get(inner.renew("2m"))
    assert outer.remaining == inner.remaining > 60
    assert outer.ttl == 120
    await w.get(outer.release())
    await w.get(inner.release())
    with pytest.raises(NotHeld):
        await w.get(inner.renew())


@in_both_worlds
async def test_a_loss_ends_all_of_them_and_is_told_once(w: World) -> None:
    told: list[Any] = []
    lock = lock_of(w, on_lost=told.append)
    silent = lock_of(w)
    leases = [await w.get(each.acquire()) for each in (lock, silent, lock)]
    w.clock.advance(2)  # so that threads have an inbox
    await w.get(w.client.revoke("a", reason="enough", now=True))
    for lease in leases:
        assert await w.get(lease.wait_lost(10)) is True
        assert lease.reason == "revoked"
        with pytest.raises(LeaseLost, match="enough"):
            lease.ensure()
    await eventually(w, lambda: bool(told))
    assert [lease.token for lease in told] == [leases[0].token]
    assert await free(w)
    fresh = await w.get(lock.acquire())
    assert fresh.token > leases[0].token, "it holds nothing any more, so it acquires anew"
    assert [await w.get(lease.release()) for lease in leases] == [False] * 3
    fresh.ensure()
    await w.get(fresh.release())


@in_both_worlds
async def test_an_inner_acquire_has_no_on_lost_of_its_own(w: World) -> None:
    outer = await w.get(lock_of(w).acquire())
    with pytest.raises(Reentrant, match="on_lost= is called once, for the outermost lease"):
        await w.get(lock_of(w, on_lost=print).acquire())
    outer.ensure()
    await w.get(outer.release())
    assert await free(w)


async def test_who_waits_for_the_loss_hears_of_the_last_release(client: dibs.Client) -> None:
    lock = client.lock("a", reentrant=True)
    lease = await lock.acquire()
    await lock.acquire()
    waiting = asyncio.create_task(lease.wait_lost())
    await lease.release()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    await lease.release()
    assert await waiting is False


async def test_a_task_is_cancelled_once_and_each_block_raises_lease_lost(
    client: dibs.Client,
) -> None:
    lock = client.lock("a", reentrant=True)
    caught: list[str] = []
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(LeaseLost) as outermost:
        async with lock:
            try:
                async with lock, lock:
                    await client.revoke("a", reason="enough")
                    await asyncio.sleep(3600)
            except LeaseLost as lost:
                caught.append(str(lost.reason))
                assert task.cancelling() == 0
                await asyncio.sleep(0.01)  # cleaning up is interrupted by nothing
                caught.append("cleaned up")
    assert caught == ["revoked", "cleaned up"]
    assert outermost.value.reason == "revoked"
    assert task.cancelling() == 0
    assert await asyncio.sleep(0, "not cancelled") == "not cancelled"


async def test_a_lost_hold_lets_the_bodys_own_error_pass(client: dibs.Client) -> None:
    lock = client.lock("a", reentrant=True)
    with pytest.raises(LookupError, match="mine") as caught:
        async with lock, lock:
            try:
                await client.revoke("a", reason="enough")
                await asyncio.sleep(3600)
            finally:
                raise LookupError("mine")
    assert any("enough" in note for note in caught.value.__notes__)


async def test_anothers_cancellation_passes_as_well(client: dibs.Client) -> None:
    lock, inside = client.lock("a", reentrant=True), asyncio.Event()

    async def body() -> None:
        async with lock, lock:
            inside.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(body())
    await inside.wait()
    await client.revoke("a", reason="enough")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_block_of_another_task_is_interrupted_too(client: dibs.Client) -> None:
    """Where each has a block of its own, on leases of one hold."""
    lock = client.lock("a", reentrant=True)
    outer, inner = await lock.acquire(), await lock.acquire()
    inside = asyncio.Event()

    async def theirs() -> None:
        async with inner:
            inside.set()
            await asyncio.sleep(3600)

    other = asyncio.create_task(theirs())
    await inside.wait()
    with pytest.raises(LeaseLost):
        async with outer:
            await client.revoke("a", reason="enough")
            await asyncio.sleep(3600)
    with pytest.raises(LeaseLost):
        await other


async def test_an_expiry_interrupts_the_innermost_block(
    client: dibs.Client, clock: ManualClock
) -> None:
    lock = client.lock("a", reentrant=True, auto_renew=False)
    with pytest.raises(LeaseLost, match="auto_renew is off"):
        async with lock, lock:
            asyncio.get_running_loop().call_soon(clock.advance, 31)
            await asyncio.sleep(3600)


def test_a_thread_hears_of_a_loss_on_leaving() -> None:
    w = World("sync")
    lock = lock_of(w, auto_renew=False)
    left: list[str] = []
    with pytest.raises(LeaseLost):
        with lock:
            with pytest.raises(LeaseLost):
                with lock:
                    w.clock.advance(31)
            left.append("inner")
    assert left == ["inner"]


@in_both_worlds
async def test_a_level_that_was_forgotten_ends_with_the_lease(w: World) -> None:
    lock = lock_of(w)
    lease = await w.get(lock.acquire())
    await w.get(lock.acquire())
    await w.get(lease.release())
    lease.ensure()
    assert not await free(w)
    with pytest.warns(ResourceWarning, match="dropped without release"):
        del lease
    looks = w.another().lock("a")

    async def let_go() -> bool:
        return not (await w.get(looks.status())).holders

    for _ in range(2000):
        if await let_go():
            break
        await asyncio.sleep(0.001) if w.is_async else threading.Event().wait(0.001)
    assert await let_go()


@in_both_worlds
async def test_closing_the_client_ends_all_of_them(w: World) -> None:
    client = w.another()
    lock = lock_of(w, client)
    leases = [await w.get(lock.acquire()) for _ in range(2)]
    await w.get(client.close())
    assert [lease.reason for lease in leases] == ["closed", "closed"]
    assert await free(w)


@in_both_worlds
async def test_released_during_an_outage_it_goes_in_the_background(w: World) -> None:
    store, client = site(w)
    lock = lock_of(w, client)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    with outage(store):
        again = await w.get(lock.acquire())
        assert [await w.get(each.release()) for each in (again, inner)] == [True, True]
        assert await w.get(outer.release()) is False
    for _ in range(2000):
        w.clock.advance(0.01)
        if await free(w):
            break
        await asyncio.sleep(0.001) if w.is_async else threading.Event().wait(0.001)
    assert await free(w)


@in_both_worlds
async def test_a_deadline_that_nobody_has_noticed_yet_is_a_loss(w: World) -> None:
    """As after a pause: the body goes on before the thread that tells the time has woken up."""
    lock = lock_of(w, auto_renew=False)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    w.clock.advance(26)
    hold = w.client.session.keeper.leases()[0]
    hold._deadline = w.clock.now()
    assert (outer.reason, inner.reason) == ("expired", "expired")
    assert await w.get(inner.release()) is False
    assert await w.get(inner.wait_lost(1000)) is True
    await w.get(outer.release())
    for _ in range(2000):
        if await free(w):
            break
        await asyncio.sleep(0.001) if w.is_async else threading.Event().wait(0.001)
    assert await free(w)


def test_the_last_level_ends_once_however_many_threads_enter_and_leave() -> None:
    depth, late, begin = Depth(), threading.Event(), threading.Barrier(4)
    ended: list[int] = []

    def work(number: int) -> None:
        begin.wait()
        for _ in range(2000):
            if not depth.enter():
                assert late.is_set()
                return
            assert len(depth)
            if depth.leave():
                assert late.is_set()
                ended.append(number)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    begin.wait()
    late.set()
    if depth.leave():
        ended.append(0)
    for thread in threads:
        thread.join()
    assert len(ended) == 1
    assert not depth.enter()
    assert len(depth) == 0
