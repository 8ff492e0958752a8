"""Reentrant locks: who holds one acquires it again, and gives it up with the last of its leases."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, LockConfig, NotHeld, Reentrant
from dibs.model import Acquire, Command
from tests.locks.elections import site
from tests.locks.worlds import World, in_both_worlds


def lock_of(w: World, client: Any = None, **options: Any) -> Any:
    return (client or w.client).lock("a", reentrant=True, **options)


async def free(w: World) -> bool:
    """As others see it."""
    lease = await w.get(w.another().lock("a").try_acquire())
    if lease is not None:
        await w.get(lease.release())
    return lease is not None


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
    assert not await free(w)
    await w.leave(lock)
    assert await free(w)


@in_both_worlds
async def test_each_release_undoes_one_acquire(w: World) -> None:
    lock = lock_of(w)
    lease, again = await w.get(lock.acquire()), await w.get(lock.try_acquire())
    assert again is lease
    assert await w.get(lease.release()) is True
    lease.ensure()
    assert not await free(w)
    assert [await w.get(lease.release()) for _ in range(2)] == [True, False]
    with pytest.raises(NotHeld, match="was released"):
        lease.ensure()
    assert await free(w)


@in_both_worlds
async def test_a_release_within_a_block_takes_no_other_blocks_hold(w: World) -> None:
    lock = lock_of(w)
    outer = await w.enter(lock)
    inner = await w.enter(lock)
    await w.get(inner.release())
    await w.leave(lock)
    outer.ensure()
    assert not await free(w)
    await w.leave(lock)
    assert await free(w)


@in_both_worlds
async def test_blocks_of_leases_that_were_acquired_before_end_in_any_order(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    await w.enter(outer)
    await w.enter(inner)
    await w.leave(outer)
    assert not await free(w)
    await w.leave(inner)
    assert await free(w)


@in_both_worlds
async def test_it_is_the_name_and_the_task_that_count_not_the_object(w: World) -> None:
    outer = await w.get(lock_of(w).acquire())
    inner = await w.get(lock_of(w, ttl="5m").acquire())
    assert (inner.token, inner.ttl) == (outer.token, outer.ttl)
    plain = w.client.lock("a")
    with pytest.raises(Reentrant, match="reentrant=True"):
        await w.get(plain.acquire())
    assert await w.get(plain.try_acquire()) is None
    assert not await free(w), "nor has anybody else got it"
    await w.get(inner.release())
    await w.get(outer.release())


@in_both_worlds
async def test_what_was_acquired_plainly_is_not_acquired_again(w: World) -> None:
    plain = await w.get(w.client.lock("a").acquire())
    with pytest.raises(Reentrant, match="already held by this task or thread"):
        await w.get(lock_of(w).acquire())
    with pytest.raises(AcquireTimeout):
        await w.get(lock_of(w, wait=0).acquire())
    await w.get(plain.release())


async def test_another_task_waits_its_turn(client: dibs.Client) -> None:
    lock = client.lock("a", reentrant=True)
    async with lock as outer:
        other = asyncio.create_task(lock.acquire())
        async with lock:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert not other.done()
    theirs = await other
    assert theirs.token > outer.token
    await theirs.release()


def test_another_thread_waits_its_turn() -> None:
    lock = World("sync").client.lock("a", reentrant=True)
    tokens: list[int] = []

    def other() -> None:
        with lock as lease, lock:
            tokens.append(lease.token)

    with lock as outer, lock:
        thread = threading.Thread(target=other)
        thread.start()
        while not lock.status().waiting:
            threading.Event().wait(0.002)
        assert not tokens
    thread.join()
    assert tokens[0] > outer.token


@in_both_worlds
async def test_the_count_moves_with_whoever_adopts(w: World) -> None:
    lock = lock_of(w)
    outer, inner = await w.get(lock.acquire()), await w.get(lock.acquire())
    tokens: list[int] = []

    async def elsewhere() -> None:
        inner.adopt()
        third = await w.get(lock.acquire())
        tokens.append(third.token)
        for lease in (third, inner, outer):
            await w.get(lease.release())

    if w.is_async:
        await asyncio.create_task(elsewhere())
    else:
        thread = threading.Thread(target=lambda: w.run(elsewhere()))
        thread.start()
        thread.join()
    assert tokens == [outer.token]
    assert await free(w)


@in_both_worlds
async def test_the_old_holder_of_an_adopted_hold_is_as_any_other(w: World) -> None:
    lock = lock_of(w)
    outer = await w.get(lock.acquire())
    if w.is_async:

        async def adopts() -> None:
            outer.adopt()

        await asyncio.create_task(adopts())
    else:
        thread = threading.Thread(target=outer.adopt)
        thread.start()
        thread.join()
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
    assert not await free(w)
    attached = await w.get(w.another().attach(handle))
    assert attached.token == inner.token
    await w.get(attached.release())


@in_both_worlds
async def test_readers_read_again_though_a_writer_waits(w: World) -> None:
    lock = w.client.rwlock("a", reentrant=True)
    outer = await w.get(lock.read().acquire())
    writer, others = w.another().rwlock("a").write(), w.another().rwlock("a")
    got: list[Any] = []

    async def write() -> None:
        got.append(await w.get(writer.acquire()))
        await w.get(got[0].release())

    waiting: Any
    if w.is_async:
        waiting = asyncio.create_task(write())
    else:
        waiting = threading.Thread(target=lambda: w.run(write()))
        waiting.start()
    while not (await w.get(others.status())).waiting:
        await asyncio.sleep(0.001) if w.is_async else threading.Event().wait(0.001)
    inner = await w.get(lock.read().acquire())
    assert (inner.token, inner.mode) == (outer.token, "read")
    with pytest.raises(Reentrant, match="upgrade"):
        await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="can't be upgraded"):
        await w.get(inner.upgrade())
    await w.get(outer.release())
    assert not got
    await w.get(inner.release())
    await waiting if w.is_async else waiting.join()
    assert got[0].token > inner.token


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


@in_both_worlds
async def test_within_a_transaction_is_refused(w: World) -> None:
    lock = lock_of(w)
    with pytest.raises(TypeError, match="within="):
        await w.get(lock.acquire(within=object()))


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_it_is_refused_where_it_means_nothing(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setenv("DIBS_REENTRANT", "yes")
    assert module.Lock("a").config.reentrant
    assert module.RWLock("a").config.reentrant
    assert not module.Lock("a", reentrant=False).config.reentrant
    assert not module.Semaphore("a", 2).config.reentrant, "what is for all is not for these"
    assert module.Semaphore("a", 1).config.reentrant


@in_both_worlds
async def test_a_semaphore_of_one_is_as_a_lock(w: World) -> None:
    slot = w.client.semaphore("a", 1, reentrant=True)
    outer, inner = await w.get(slot.acquire()), await w.get(slot.acquire())
    assert inner.token == outer.token
    await w.get(outer.release())
    assert await w.get(slot.locked())
    await w.get(inner.release())
    assert not await w.get(slot.locked())


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
