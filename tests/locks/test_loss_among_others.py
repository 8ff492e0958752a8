"""Loss beside what else interrupts a task: timeouts, task groups, other people's cancellations."""

import asyncio
from collections.abc import Callable

import pytest

from dibs import Client, LeaseLost
from dibs.testing import ManualClock
from tests.locks.waits import cancelling

FOR_EVER = 3600


def lose(clock: ManualClock) -> None:
    """Every lease of these tests is lost 9 s after it was acquired."""
    clock.advance(9)


def soon(function: Callable[[ManualClock], None], clock: ManualClock) -> None:
    asyncio.get_running_loop().call_soon(function, clock)


async def test_loss_within_a_timeout_that_has_time_left(client: Client, clock: ManualClock) -> None:
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(FOR_EVER):
            async with client.lock("a", ttl=10, auto_renew=False):
                soon(lose, clock)
                await asyncio.sleep(FOR_EVER)
    with pytest.raises(LeaseLost):
        async with client.lock("b", ttl=10, auto_renew=False):
            async with asyncio.timeout(FOR_EVER):
                soon(lose, clock)
                await asyncio.sleep(FOR_EVER)
    assert cancelling() == 0


async def test_a_timeout_around_a_lease_that_stands(client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            async with client.lock("a"):
                await asyncio.sleep(FOR_EVER)
    assert not await client.lock("a").locked()
    with pytest.raises(TimeoutError):
        async with client.lock("a") as lease:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(FOR_EVER)
    assert not lease.lost
    assert cancelling() == 0


@pytest.mark.parametrize("timeout_is_outside", [True, False])
async def test_loss_and_timeout_in_one_turn_of_the_loop(
    client: Client, clock: ManualClock, timeout_is_outside: bool
) -> None:
    """Whoever is outside has the last word; either way nothing stays counted."""
    lock = client.lock("a", ttl=10, auto_renew=False)
    loop = asyncio.get_running_loop()
    if timeout_is_outside:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(FOR_EVER) as timeout, lock:
                soon(lose, clock)
                loop.call_soon(timeout.reschedule, loop.time())
                await asyncio.sleep(FOR_EVER)
    else:
        with pytest.raises(LeaseLost):
            async with lock, asyncio.timeout(FOR_EVER) as timeout:
                soon(lose, clock)
                loop.call_soon(timeout.reschedule, loop.time())
                await asyncio.sleep(FOR_EVER)
    assert cancelling() == 0
    clock.advance(1)
    async with lock:
        pass


async def test_somebody_elses_cancellation_is_never_swallowed(
    client: Client, clock: ManualClock
) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with client.lock("a", ttl=10, auto_renew=False):
            entered.set()
            await asyncio.sleep(FOR_EVER)

    for order in ("theirs first", "ours first"):
        entered.clear()
        task = asyncio.create_task(hold())
        await entered.wait()
        if order == "theirs first":
            task.cancel()
            lose(clock)
        else:
            lose(clock)
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled(), order
        assert task.cancelling() == 1, order
        clock.advance(1)


async def test_a_body_that_swallowed_theirs_and_ours_is_told_all_the_same(
    client: Client, clock: ManualClock
) -> None:
    """It ended in silence, which must not pass for success."""
    entered = asyncio.Event()

    async def hold() -> None:
        async with client.lock("a", ttl=10, auto_renew=False):
            entered.set()
            for _ in range(3):
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass

    task = asyncio.create_task(hold())
    await entered.wait()
    lose(clock)
    task.cancel()
    with pytest.raises(LeaseLost):
        await task
    assert task.cancelling() == 1, "theirs is not ours to take back"


async def test_a_task_group_within_the_lease_is_wound_up(
    client: Client, clock: ManualClock
) -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            ended.append(number)

    with pytest.raises(LeaseLost):
        async with client.lock("a", ttl=10, auto_renew=False):
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(child(number))
                await asyncio.sleep(0)
                soon(lose, clock)
    assert sorted(ended) == [0, 1, 2]
    assert cancelling() == 0


async def test_a_child_that_fails_while_a_group_is_wound_up_is_heard(
    client: Client, clock: ManualClock
) -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            raise ValueError("a child's own")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with client.lock("a", ttl=10, auto_renew=False):
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(0)
                soon(lose, clock)
    assert caught.group_contains(ValueError, match="a child's own")
    assert "was lost" in caught.value.__notes__[0]
    assert cancelling() == 0


async def test_a_holder_that_was_adopted_is_the_one_interrupted(
    client: Client, clock: ManualClock
) -> None:
    """The task that acquired goes on; the one that took over is told."""
    passed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lease = await client.lock("a", ttl=10, auto_renew=False).acquire()

    async def worker() -> None:
        try:
            async with lease.adopt():
                soon(lose, clock)
                await asyncio.sleep(FOR_EVER)
        except LeaseLost as error:
            passed.set_result(error.reason)

    task = asyncio.create_task(worker())
    assert await passed == "expired"
    await task
    assert cancelling() == 0
