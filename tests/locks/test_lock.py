"""What a lock and its lease do, in both worlds."""

import gc
import re
import warnings
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, CapacityWarning, LeaseLost, MissingCapability, NotHeld, Reentrant
from tests.locks.worlds import World, in_both_worlds


@in_both_worlds
async def test_the_message_of_a_time_out_names_the_holder(w: World) -> None:
    holder = await w.get(
        w.client.lock("order:42", label="web", note="paying", auto_renew=False).acquire()
    )
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
    assert isinstance(caught.value, TimeoutError)
    await w.get(holder.release())


@in_both_worlds
async def test_a_nested_wait_is_an_error_and_a_nested_try_is_none(w: World) -> None:
    lock = w.client.lock("a")
    lease = await w.enter(lock)
    with pytest.raises(Reentrant, match="already held by this task or thread"):
        await w.get(lock.acquire())
    with pytest.raises(Reentrant):
        await w.enter(w.client.lock("a"))
    with pytest.raises(AcquireTimeout):
        await w.get(lock.acquire(wait=0))
    assert await w.get(lock.try_acquire()) is None
    assert not lease.lost
    await w.leave(lock)
    again = await w.get(lock.acquire())
    await w.get(again.release())


@in_both_worlds
async def test_a_lost_lease_is_not_held_by_its_task_any_more(w: World) -> None:
    lock = w.client.lock("a", auto_renew=False, ttl=10)
    lost = await w.get(lock.acquire())
    w.clock.advance(11)
    assert lost.lost
    again = await w.get(lock.acquire(wait=0))
    assert not again.lost
    await w.get(again.release())


@in_both_worlds
async def test_ensure_counts_to_the_deadline_not_to_the_ttl(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=10, auto_renew=False).acquire())
    margin = 10 - lease.remaining
    assert margin == pytest.approx(1.1)
    lease.ensure(needs="8s")
    w.clock.advance(8)
    lease.ensure()
    lease.ensure(needs=0.5)
    with pytest.raises(LeaseLost, match=r"has 900 ms left, and 2 s are needed"):
        lease.ensure(needs="2s")
    assert not lease.lost
    w.clock.advance(0.91)
    assert (lease.lost, lease.reason, lease.remaining) == (True, "expired", 0)
    with pytest.raises(LeaseLost, match="another holder can get it soon, when it expires"):
        lease.ensure()


@in_both_worlds
async def test_what_was_released_can_be_neither_renewed_nor_relied_on(w: World) -> None:
    lease = await w.get(w.client.lock("a").acquire())
    await w.get(lease.release())
    with pytest.raises(NotHeld, match="was released"):
        lease.ensure()
    with pytest.raises(NotHeld):
        await w.get(lease.renew())
    with pytest.raises(NotHeld):
        lease.detach()
    assert not lease.lost
    assert lease.remaining == 0


@in_both_worlds
async def test_renew_takes_another_ttl_and_never_shortens(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=10).acquire())
    await w.get(lease.renew("60s"))
    assert (lease.ttl, lease.remaining) == (60, pytest.approx(60 - 6.6))
    await w.get(lease.renew(1))
    assert lease.remaining > 50
    status = await w.get(w.client.status("a"))
    assert status.holders[0].expires_in == pytest.approx(60)
    await w.get(lease.release())


@in_both_worlds
async def test_without_renewal_a_lease_ends_by_itself(w: World) -> None:
    told: list[object] = []
    lease = await w.get(w.client.lock("a", ttl=3, auto_renew=False, on_lost=told.append).acquire())
    w.clock.advance(2)
    await w.get(lease.renew())
    w.clock.advance(2)
    assert not lease.lost
    w.clock.advance(0.8)
    assert lease.reason == "expired"
    assert await w.get(lease.wait_lost()) is True
    await w.turn()
    assert await w.get(w.another().lock("a").try_acquire()) is None, "the store waits for its ttl"
    w.clock.advance(0.3)
    taken = await w.get(w.another().lock("a").try_acquire())
    assert taken is not None
    await w.get(taken.release())


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
async def test_wait_lost_tells_a_time_out_from_a_loss(w: World) -> None:
    lease = await w.get(w.client.lock("a").acquire())
    assert await w.get(lease.wait_lost(0)) is False
    await w.get(lease.release())
    assert await w.get(lease.wait_lost()) is False, "given up is not lost"


@in_both_worlds
async def test_status_tells_what_is_ones_own(w: World) -> None:
    lease = await w.get(w.client.lock("a", label="me").acquire())
    mine = await w.get(w.client.lock("a").status())
    assert mine.mine == mine.holders
    assert mine.holders[0].token == lease.token
    assert lease._id not in repr(mine), "an id is a capability, and secret"
    assert (await w.get(w.another().lock("a").status())).mine == ()
    await w.get(lease.release())


@in_both_worlds
async def test_list_finds_every_key_with_the_prefix_in_order(w: World) -> None:
    names = sorted(f"job/{n:03}" for n in range(250))
    leases = [await w.get(w.client.lock(name).acquire()) for name in (*names, "other")]
    found = w.client.list("job/", kind="lock")
    statuses = [status async for status in found] if w.is_async else list(found)
    assert [status.key.decode() for status in statuses] == [f"lock:{name}" for name in names]
    for lease in leases:
        await w.get(lease.release())
    rest = w.client.list()
    assert ([status async for status in rest] if w.is_async else list(rest)) == []


@in_both_worlds
async def test_require_is_checked_before_anything_is_acquired(w: World) -> None:
    with pytest.raises(MissingCapability, match="can't promise durable"):
        w.client.lock("a", require={"durable"})
    lease = await w.get(w.client.lock("a", require="process").acquire())
    await w.get(lease.release())


@in_both_worlds
async def test_a_lease_that_nobody_was_to_renew_says_so(w: World) -> None:
    lease = await w.get(w.client.lock("a", auto_renew=False, ttl=10).acquire())
    w.clock.advance(11)
    with pytest.raises(LeaseLost, match=r"was not renewed in time \(auto_renew is off\)"):
        lease.ensure()


async def test_behind_a_lease_of_its_own_that_ends_by_itself_a_task_may_wait() -> None:
    """Longer than it takes to look for deadlocks."""
    async with dibs.connect(f"memory://{uuid4()}") as client:
        lock = client.lock("a", ttl=1.5, auto_renew=False)
        first = await lock.acquire()
        with pytest.raises(AcquireTimeout):
            await lock.acquire(wait=0.05)
        second = await lock.acquire(wait=20)
        assert first.lost
        assert second.token > first.token
        await second.release()


def test_behind_a_lease_of_its_own_that_ends_by_itself_a_thread_may_wait() -> None:
    with dibs.sync.connect(f"memory://{uuid4()}") as client:
        lock = client.lock("a", ttl=1.5, auto_renew=False)
        first = lock.acquire()
        assert lock.try_acquire() is None
        second = lock.acquire(wait=20)
        assert first.lost
        assert second.token > first.token
        second.release()


@in_both_worlds
async def test_a_lease_that_was_lost_before_its_block_began_was_not_dropped(w: World) -> None:
    """The process was paused between the grant and the body, so nothing has seen the loss yet."""
    lease = await w.get(w.client.lock("a", ttl=3).acquire())
    w.clock._move(w.clock.now() + 10)  # without a stop on the way
    with pytest.raises(LeaseLost):
        await w.enter(lease)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    assert not told


@in_both_worlds
async def test_several_units_in_one_block(w: World) -> None:
    gpus = w.client.semaphore("gpu", 4)
    one, two = await w.get(gpus.acquire()), await w.get(gpus.acquire())
    await w.get(one.release())
    block = gpus.acquire(units=3)
    lease = await w.enter(block)
    assert lease.slots == (0, 2, 3)
    with pytest.raises(ValueError, match=r"slots \(0, 2, 3\)"):
        _ = lease.slot
    assert await w.get(gpus.locked())
    await w.leave(block)
    status = await w.get(gpus.status())
    assert [holder.slots for holder in status.holders] == [two.slots] == [(1,)]
    await w.get(two.release())


@in_both_worlds
async def test_more_units_than_there_are(w: World) -> None:
    gpus = w.client.semaphore("gpu", 4)
    for units in (0, 5):
        with pytest.raises(ValueError, match="has a capacity of 4"):
            await w.get(gpus.acquire(units=units))


@in_both_worlds
async def test_a_capacity_may_grow_and_shrink_between_acquires(w: World) -> None:
    small, large = (w.client.semaphore("gpu", capacity) for capacity in (2, 4))
    first = [await w.get(small.acquire()) for _ in range(2)]
    more = [await w.get(large.acquire()) for _ in range(2)]
    assert [lease.slot for lease in (*first, *more)] == [0, 1, 2, 3]
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


@in_both_worlds
async def test_another_capacity_is_told_where_one_looks(w: World) -> None:
    mine, theirs = (w.client.semaphore("gpu", capacity) for capacity in (2, 4))
    lease = await w.get(theirs.acquire())
    for look in (mine.status, mine.locked):
        with pytest.warns(CapacityWarning, match="it was last acquired with one of 4"):
            await w.get(look())
    others = [await w.get(theirs.acquire()) for _ in range(3)]
    with (
        pytest.warns(CapacityWarning, match="of at least 4"),
        pytest.raises(AcquireTimeout),
    ):
        await w.get(mine.acquire(wait=0))
    for each in (lease, *others):
        await w.get(each.release())


@in_both_worlds
async def test_nobody_is_warned_of_nothing(w: World) -> None:
    mine: Any = w.client.semaphore("gpu", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await w.get(mine.status())
        held = [await w.get(mine.acquire()) for _ in range(2)]
        assert await w.get(mine.try_acquire()) is None
        assert await w.get(mine.locked())
        for lease in held:
            await w.get(lease.release())
        old = await w.get(w.client.semaphore("gpu", 4).acquire())
        await w.get(old.release())
        assert not await w.get(mine.locked()), "what nobody uses has no capacity"


@in_both_worlds
async def test_its_repr_tells_its_capacity(w: World) -> None:
    assert repr(w.client.semaphore("gpu", 3)) == "<Semaphore gpu, capacity 3>"
