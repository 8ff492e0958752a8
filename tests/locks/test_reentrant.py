"""Reentrant locks: their holder acquires them again, and gives them up with the last of its leases."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, Client, LeaseLost, LockConfig, NotHeld, Reentrant
from dibs.locks.reentrant import Depth
from dibs.model import Acquire, Command
from tests.locks.waits import Beside, Holder, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds, is_free, outage, site


def lock_of(w: World, client: Any = None, **options: Any) -> Any:
    return (client or w.client).lock("a", reentrant=True, **options)


@in_both_worlds
async def test_it_is_acquired_again_without_asking_the_store(w: World) -> None:
    store, client = site(w)
    asked: list[Command] = []
    store.before = asked.extend
    lock = lock_of(w, client)
    outer = await w.enter(lock)
    inner = await w.enter(lock)
    assert [type(command) for command in asked] == [Acquire]
    assert inner is outer
    await w.leave(lock)
    assert len(asked) == 1
    outer.ensure()
    assert not await is_free(w, w.another().lock("a"))
    await w.leave(lock)
    assert await is_free(w, w.another().lock("a"))


@in_both_worlds
async def test_a_release_within_a_block_takes_no_other_blocks_hold(w: World) -> None:
    lock = lock_of(w)
    outer = await w.enter(lock)
    inner = await w.enter(lock)
    await w.get(inner.release())
    await w.leave(lock)
    outer.ensure()
    assert not await is_free(w, w.another().lock("a"))
    await w.leave(lock)
    assert await is_free(w, w.another().lock("a"))


@in_both_worlds
async def test_blocks_of_leases_that_were_acquired_before_end_in_any_order(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    await w.enter(outer)
    await w.enter(inner)
    await w.leave(outer)
    assert not await is_free(w, w.another().lock("a"))
    await w.leave(inner)
    assert await is_free(w, w.another().lock("a"))


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


@in_both_worlds
async def test_a_plain_hold_is_not_acquired_again(w: World) -> None:
    plain = await w.get(w.client.lock("a").acquire())
    with pytest.raises(Reentrant, match="already held by this task or thread"):
        await w.get(lock_of(w).acquire())
    with pytest.raises(AcquireTimeout):
        await w.get(lock_of(w, wait=0).acquire())
    await w.get(plain.release())


@in_both_worlds
async def test_another_task_or_thread_waits_its_turn(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    other = Holder(w, lock)
    await until_queued(w, "a")
    await w.get(inner.release())
    assert not other.settled
    await w.get(outer.release())
    assert (await other.holds()).token > outer.token
    await other.lets_go()


@in_both_worlds
async def test_the_count_moves_with_the_task_or_thread_that_adopts(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    tokens: list[int] = []

    async def elsewhere() -> None:
        inner.adopt()
        third = await w.get(lock.acquire())
        tokens.append(third.token)
        for lease in (third, inner, outer):
            await w.get(lease.release())

    async def keeps() -> None:
        outer.adopt()

    await Beside(w, elsewhere).result()
    assert tokens == [outer.token]
    outer = await w.get(lock.acquire())
    await Beside(w, keeps).result()
    assert await w.get(lock.try_acquire()) is None
    await w.get(outer.release())


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
    again = await w.get(lock.read().acquire())
    await w.get(inner.release())
    before = again.token
    await w.get(again.upgrade())
    assert (again.mode, again.token > before) == ("write", True)
    await w.get(again.release())


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_it_is_refused_where_it_means_nothing(module: Any) -> None:
    with pytest.raises(TypeError, match="another slot"):
        module.Semaphore("a", 2, reentrant=True)
    with pytest.raises(TypeError, match="another slot"):
        module.Semaphore.from_config("a", 2, LockConfig(reentrant=True))
    with pytest.raises(TypeError, match="reentrant"):
        module.TaskLock("a", 0, 1, reentrant=True)
    with pytest.raises(TypeError, match="reentrant"):
        module.LeaderElection("a", reentrant=True)
    with pytest.raises(TypeError, match="reentrant is 'yes': give True or False"):
        module.Lock("a", reentrant="yes")


def test_the_setting_for_all_is_not_for_semaphores_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIBS_REENTRANT", "yes")
    assert dibs.Lock("a").config.reentrant
    assert dibs.RWLock("a").config.reentrant
    assert not dibs.Semaphore("a", 2).config.reentrant
    assert dibs.Semaphore("a", 1).config.reentrant


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_a_decorated_function_may_call_itself(module: Any) -> None:
    w = World("async" if module is dibs else "sync")

    @module.Lock.wraps("count:{what}", reentrant=True, client=w.client)
    async def down(what: str, number: int) -> list[int]:
        token = dibs.current_lease().token
        return [token, *(await down(what, number - 1))] if number else [token]

    @module.Lock.wraps("count:{what}", reentrant=True, client=w.client)
    def plain(what: str, number: int) -> list[int]:
        token = dibs.current_lease().token
        return [token, *plain(what, number - 1)] if number else [token]

    assert len(set(plain("a", 3))) == 1
    assert len(set(asyncio.run(down("a", 3)))) == 1
    w.client.session.close()


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_holds_nothing_of_it(tmp_path: Path) -> None:
    with dibs.sync.connect(f"sqlite:///{tmp_path}/leases.db") as client:
        lock = client.lock("a", reentrant=True)
        with lock as outer, lock as inner:
            pid = os.fork()
            if pid == 0:
                told = [outer.reason, inner.reason, inner.release(), lock.try_acquire()]
                os._exit(0 if told == ["closed", "closed", False, None] else 1)
            assert os.waitpid(pid, 0)[1] == 0
            outer.ensure()
            assert [holder.token for holder in lock.status().mine] == [inner.token]


# -- loss -------------------------------------------------------------------------------------------


@in_both_worlds
async def test_a_renewal_of_one_lease_renews_all(w: World) -> None:
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
async def test_a_loss_ends_all_leases_and_calls_on_lost_once(w: World) -> None:
    told: list[Any] = []
    lock = lock_of(w, on_lost=told.append)
    with pytest.raises(Reentrant, match="on_lost= is called once, for the outermost lease"):
        outer = await w.get(lock_of(w).acquire())
        await w.get(lock.acquire())
    await w.get(outer.release())
    leases = [await w.get(each.acquire()) for each in (lock, lock_of(w), lock)]
    w.clock.advance(2)  # so that threads have an inbox
    await w.get(w.client.revoke("a", reason="enough", now=True))
    for lease in leases:
        assert await w.get(lease.wait_lost(10)) is True
        assert lease.reason == "revoked"
        with pytest.raises(LeaseLost, match="enough"):
            lease.ensure()
    await until(w, lambda: bool(told))
    assert [lease.token for lease in told] == [leases[0].token]
    assert await is_free(w, w.another().lock("a"))
    fresh = await w.get(lock.acquire())
    assert fresh.token > leases[0].token, "it holds nothing any more, so it acquires anew"
    assert [await w.get(lease.release()) for lease in leases] == [False] * 3
    fresh.ensure()
    await w.get(fresh.release())


async def test_wait_lost_returns_false_after_the_last_release(client: Client) -> None:
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
    client: Client,
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


async def test_a_block_of_another_task_is_interrupted_too(client: Client) -> None:
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


def test_in_a_thread_each_block_raises_on_leaving() -> None:
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
    lock, looks = lock_of(w), w.another().lock("a")
    lease = await w.get(lock.acquire())
    await w.get(lock.acquire())
    await w.get(lease.release())
    lease.ensure()
    with pytest.warns(ResourceWarning, match="dropped without release"):
        del lease
    await until(w, lambda: is_free(w, looks))


@in_both_worlds
async def test_released_during_an_outage_it_goes_in_the_background(w: World) -> None:
    store, client = site(w)
    lock = lock_of(w, client)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    with outage(store):
        again = await w.get(lock.acquire())
        assert [await w.get(each.release()) for each in (again, inner)] == [True, True]
        assert await w.get(outer.release()) is False
    await time_passes(w, lambda: is_free(w, w.another().lock("a")), step=0.01)


@in_both_worlds
async def test_a_deadline_that_nobody_has_noticed_yet_is_a_loss(w: World) -> None:
    """The process was paused: its body goes on before the thread that renews has woken up."""
    lock = lock_of(w, auto_renew=False)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    w.clock._move(w.clock.now() + 27)
    assert (outer.reason, inner.reason) == ("expired", "expired")
    assert await w.get(inner.release()) is False
    assert await w.get(inner.wait_lost(1000)) is True
    await w.get(outer.release())
    await until(w, lambda: is_free(w, w.another().lock("a")))


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
