"""Semaphores: several units in one block, slots that nobody else has, a capacity that changes."""

import warnings
from typing import Any

import pytest

from dibs import AcquireTimeout, CapacityWarning
from tests.primitives.worlds import World, in_both_worlds


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
        with pytest.raises(ValueError, match="has 1 to 4"):
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
