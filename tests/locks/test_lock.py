"""What locks, semaphores and their leases do, for asyncio and threads."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from dibs import AcquireTimeout, CapacityWarning, LeaseLost, NotHeld
from dibs.model import Command, Renew
from tests.locks.waits import Holder, ticking, time_passes, until_queued
from tests.locks.worlds import World, in_both_worlds, is_free, site


@in_both_worlds
async def test_a_time_out_names_the_holder_and_counts_who_is_ahead(w: World) -> None:
    lock = w.client.lock("order:42", label="web", note="paying", auto_renew=False)
    holder = await w.get(lock.acquire())
    w.clock.advance(9)
    with pytest.raises(AcquireTimeout) as caught:
        await w.get(w.another().lock("order:42").acquire(wait=0))
    told = str(caught.value)
    assert re.search(r"^order:42 is held by \S+/\d+/web \(paying\) for 9 s", told), told
    assert f"token {holder.token}" in told
    assert "expires in 21 s" in told
    assert caught.value.key == b"lock:order:42"
    assert caught.value.holders[0].owner == holder.owner
    assert caught.value.retry_after == pytest.approx(21)
    ahead = []
    for number in (1, 2):
        ahead.append(Holder(w, w.another().lock("order:42")))
        await until_queued(w, "order:42", number)
    late = Holder(w, w.another().lock("order:42", wait=7))
    await until_queued(w, "order:42", 3)
    await time_passes(w, lambda: late.settled)
    error = await late.beside.error()
    assert isinstance(error, AcquireTimeout)
    assert "2 are ahead of you; gave up after 7 s" in str(error)
    assert error.position == 2
    await until_queued(w, "order:42", 2)
    await w.get(holder.release())
    for each in ahead:
        await time_passes(w, lambda each=each: each.settled)  # type: ignore[misc]
        await each.lets_go()


@pytest.mark.parametrize("how", ["release", "detach"])
@in_both_worlds
async def test_what_is_given_up_can_be_neither_renewed_nor_relied_on(w: World, how: str) -> None:
    lock = w.client.lock("a", ttl=10)
    lease = await w.enter(lock)
    assert await w.get(lease.wait_lost(0)) is False
    handle = await w.get(getattr(lease, how)())
    assert lease._id not in repr(lease), "an id is a secret"
    assert await w.get(lease.wait_lost()) is False, "given up is not lost"
    with pytest.raises(NotHeld, match=f"was {how.rstrip('e')}ed"):
        lease.ensure()
    with pytest.raises(NotHeld):
        await w.get(lease.renew())
    with pytest.raises(NotHeld):
        lease.detach()
    assert await w.get(lease.release()) is False
    assert (lease.lost, lease.remaining) == (False, 0)
    await w.leave(lock)  # without an error
    if how == "detach":
        attached = await w.get(w.another().attach(handle))
        assert (attached.token, attached.slots, attached.ttl) == (lease.token, (0,), 10)
        w.clock.advance(60)
        attached.ensure()
        assert await w.get(attached.release())
        with pytest.raises(LeaseLost, match="has ended"):
            await w.get(w.another().attach(handle))
        for wrong in ("", "lease1.AAAA", "lease2.e30=", "lease1.e30="):
            with pytest.raises(ValueError, match="no handle"):
                await w.get(w.client.attach(wrong))
    assert await is_free(w, w.client.lock("a"))


@pytest.mark.parametrize("by_hand", [True, False])
@in_both_worlds
async def test_an_answer_that_comes_after_the_deadline_revives_no_lease(
    w: World, by_hand: bool
) -> None:
    """The process was paused, and no timer has seen the deadline yet."""
    store, client = site(w)
    lease = await w.hold(client.lock("a", ttl=10, auto_renew=not by_hand))
    end = w.clock.now() + 10

    def pause(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Renew) for command in commands):
            w.clock._move(end)

    store.after = pause
    w.clock.advance(4)
    if by_hand:
        with pytest.raises(LeaseLost):
            await w.get(lease.renew())
    client.session.keeper.flush(5)
    assert lease.reason == "expired"


@in_both_worlds
async def test_max_hold_ends_a_lease_that_is_renewed(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=3, max_hold=10).acquire())
    w.clock.advance(9.9)
    lease.ensure()
    w.clock.advance(0.2)
    assert lease.reason == "max_hold"
    w.client.session.keeper.flush(5)
    early = await w.get(w.another().lock("a").try_acquire())
    assert early is None, "its holder has only just been told, and may need a moment"
    w.clock.advance(3)
    again = await w.get(w.another().lock("a").try_acquire())
    assert again is not None, "it is renewed no more"
    await w.get(again.release())


@in_both_worlds
async def test_list_finds_every_key_with_the_prefix_in_order(w: World) -> None:
    names = [f"job/{n:03}" for n in range(250)]
    leases = [await w.hold(w.client.lock(name)) for name in (*names, "other")]
    found = w.client.list("job/", kind="lock")
    statuses = [status async for status in found] if w.is_async else list(found)
    assert [status.key.decode() for status in statuses] == [f"lock:{name}" for name in names]
    assert statuses[0].holders[0].token == leases[0].token
    assert leases[0]._id not in repr(statuses[0]), "an id is a capability, and secret"
    own = await w.get(w.client.lock(names[0]).status())
    assert own.mine == own.holders
    assert (await w.get(w.another().lock(names[0]).status())).mine == ()


@in_both_worlds
@pytest.mark.parametrize("together", [False, True])
async def test_a_task_may_wait_for_its_own_lease_to_expire(w: World, together: bool) -> None:
    """Longer than it takes to look for deadlocks."""
    lock = w.client.lock("a", ttl=10, auto_renew=False)
    taken = w.module.AllOf(w.client.lock("0"), lock) if together else lock
    first = await w.get(lock.acquire())
    assert await w.get(taken.try_acquire()) is None
    second = await ticking(w, lambda: taken.acquire(wait=20))
    assert first.lost
    assert (second[1] if together else second).token > first.token
    await w.get(second.release())


@in_both_worlds
async def test_a_capacity_may_grow_and_shrink_between_acquires(w: World) -> None:
    small, large = (w.client.semaphore("gpu", capacity) for capacity in (2, 4))
    for units in (0, 3):
        with pytest.raises(ValueError, match="has a capacity of 2"):
            await w.get(small.acquire(units=units))
    several = await w.get(large.acquire(units=3))
    with pytest.raises(ValueError, match=r"slots \(0, 1, 2\)"):
        _ = several.slot
    await w.get(several.release())
    await w.get(small.status())  # what nobody uses has no capacity: no warning
    first = [await w.get(small.acquire()) for _ in range(2)]
    more = [await w.get(large.acquire()) for _ in range(2)]
    assert [lease.slot for lease in (*first, *more)] == [0, 1, 2, 3]
    for look in (small.status, small.locked):
        with pytest.warns(CapacityWarning, match="it was last acquired with one of 4"):
            await w.get(look())
    with pytest.warns(CapacityWarning, match=r"capacity of 2 here, and slot 3 is held"):
        assert await w.get(small.try_acquire()) is None
    for lease in more:
        lease.ensure()  # what is held runs on
        await w.get(lease.release())
    assert await w.get(small.try_acquire()) is None
    await w.get(first[0].release())
    again = await w.get(small.acquire())
    assert again.slot == 0
    for lease in (again, first[1]):
        await w.get(lease.release())


def test_blocks_may_be_entered_and_left_by_hand() -> None:
    """The last one that was entered is left first."""
    client = World("sync").client
    lock, semaphore = client.lock("a"), client.semaphore("s", 2)
    with pytest.raises(RuntimeError, match="a block of a is left that nobody entered"):
        lock.__exit__(None, None, None)
    with ExitStack() as stack:
        lease = stack.enter_context(lock)
        assert lease.remaining
    assert not lock.locked()
    with semaphore as outer:
        inner = semaphore.__enter__()
        semaphore.__exit__(None, None, None)
        assert outer.remaining
        assert not inner.remaining
    assert not outer.remaining


def test_a_block_that_another_thread_leaves_ends_no_other_ones_lease() -> None:
    """As a framework does that enters a generator in one thread and finishes it in another."""
    semaphore = World("sync").client.semaphore("slots", 2)
    enters, enters_too, leaves = (ThreadPoolExecutor(1) for _ in range(3))
    first, second = ExitStack(), ExitStack()
    one = enters.submit(first.enter_context, semaphore).result()
    enters_too.submit(second.enter_context, semaphore).result()
    with pytest.raises(RuntimeError, match=r"write `with lock.acquire\(\) as lease:`"):
        leaves.submit(first.close).result()
    assert not one.lost
    assert semaphore.status().used == 2
    enters_too.submit(second.close).result()  # its own
    assert [each.slots for each in semaphore.status().holders] == [one.slots]
    enters.shutdown()  # whoever ended has left his block to another
    enters_too.submit(semaphore.__exit__, None, None, None).result()
    assert not semaphore.status().holders
    for each in (enters_too, leaves):
        each.shutdown()


async def test_a_body_that_is_dropped_in_its_block_keeps_nothing() -> None:
    """Nobody steps it any more, while its loop and its lock live on."""
    lock = World("async").client.lock("a")
    assert not await lock.locked()  # it has connected

    async def body() -> None:
        async with lock:
            await asyncio.get_running_loop().create_future()

    dropped = body()
    dropped.send(None)
    assert await lock.locked()
    with suppress(RuntimeError):  # it may have to wait for the store, and nobody steps it
        dropped.close()
    del dropped
    async with asyncio.timeout(10):
        while await lock.locked():
            await asyncio.sleep(0)
