"""How the loss of a lease reaches the body of an `async with`, and what it leaves alone."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Client, Lease, LeaseLost
from dibs.clock import SystemClock
from dibs.model import Notification
from dibs.runtime.aio import TaskGuard
from dibs.runtime.notifications import ForwardingReceiver
from dibs.session import StoreSession
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from tests.locks.waits import cancelling

FOR_EVER = 3600


type Lose = Callable[..., asyncio.Task[None]]


class InTheSameTurn(ForwardingReceiver):
    """The keeper has asked the store of a revocation before the loop goes on."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.session.loop_runtime().receiver)
        self._keeper = client.session.keeper

    def deliver(self, notification: Notification) -> None:
        super().deliver(notification)
        assert self._keeper.flush(10)


@pytest.fixture
async def lose(client: Client) -> Lose:
    """Lose locks as soon as their holder waits in its body."""
    client.session.loop_runtime().receiver = InTheSameTurn(client)

    async def revoke(*names: str) -> None:
        for name in names:
            await client.revoke(name, reason="a test")

    return lambda *names: asyncio.create_task(revoke(*names))


async def test_the_task_inside_is_cancelled_and_told_why(client: Client, lose: Lose) -> None:
    with pytest.raises(LeaseLost, match=r"it was revoked \(a test\)") as caught:
        async with client.lock("a") as lease:
            task = lose("a")
            await asyncio.sleep(FOR_EVER)
    assert caught.value.reason == lease.reason == "revoked"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert cancelling() == 0
    await task


async def test_by_its_deadline_without_any_word_from_the_store(
    client: Client, clock: ManualClock
) -> None:
    with pytest.raises(LeaseLost) as caught:
        async with client.lock("a", ttl=10, auto_renew=False):
            asyncio.get_running_loop().call_soon(clock.advance, 9)
            await asyncio.sleep(FOR_EVER)
    assert caught.value.reason == "expired"
    assert cancelling() == 0


async def test_an_entered_acquisition_and_an_entered_lease_are_alike(
    client: Client, lose: Lose
) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock("a").acquire():
            task = lose("a")
            await asyncio.sleep(FOR_EVER)
    await task
    lease = await client.lock("b").acquire()
    with pytest.raises(LeaseLost):
        async with lease:
            task = lose("b")
            await asyncio.sleep(FOR_EVER)
    await task
    assert cancelling() == 0


async def test_a_bare_lease_cancels_nobody(client: Client, lose: Lose) -> None:
    lease = await client.lock("a").acquire()
    await lose("a")
    assert await lease.wait_lost()
    await asyncio.sleep(0)
    assert cancelling() == 0
    with pytest.raises(LeaseLost):
        async with lease:
            pytest.fail("entering a lost lease raises")


async def test_the_bodys_own_exception_passes_with_a_note(
    client: Client, clock: ManualClock
) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        async with client.lock("a", ttl=10, auto_renew=False):
            clock.advance(9)
            raise ValueError("mine")
    assert "was lost" in caught.value.__notes__[0]
    assert cancelling() == 0


async def test_the_exception_of_a_cleanup_passes_with_a_note(client: Client, lose: Lose) -> None:
    with pytest.raises(ValueError, match="cleanup") as caught:
        async with client.lock("a"):
            task = lose("a")
            try:
                await asyncio.sleep(FOR_EVER)
            except asyncio.CancelledError:
                raise ValueError("cleanup") from None
    assert "was lost" in caught.value.__notes__[0]
    assert cancelling() == 0
    await task


async def test_a_body_that_ends_in_silence_is_told_on_leaving(
    client: Client, clock: ManualClock
) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock("a", ttl=10, auto_renew=False):
            clock.advance(9)
    assert cancelling() == 0


async def test_a_body_that_swallows_the_cancellation_is_told_on_leaving(
    client: Client, lose: Lose
) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock("a"):
            task = lose("a")
            try:
                await asyncio.sleep(FOR_EVER)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
    assert cancelling() == 0
    await task


async def test_loss_in_a_finally_lets_it_run_and_tells(client: Client, lose: Lose) -> None:
    cleaned: list[Lease] = []
    with pytest.raises(LeaseLost):
        async with client.lock("a") as lease:
            try:
                task = lose("a")
            finally:
                try:
                    await asyncio.sleep(FOR_EVER)
                finally:
                    cleaned.append(lease)
    assert cleaned == [lease]
    assert cancelling() == 0
    await task


async def test_loss_once_the_body_is_over_interrupts_nothing(client: Client, lose: Lose) -> None:
    lock = client.lock("a")
    for _ in range(3):
        async with lock:
            pass
        await lose("a")
        await asyncio.sleep(0)
    assert cancelling() == 0


@pytest.mark.parametrize("lost", [["outer"], ["inner"], ["outer", "inner"], ["inner", "outer"]])
async def test_nested_leases_raise_for_the_outermost_that_was_lost(
    client: Client, lose: Lose, lost: list[str]
) -> None:
    raised: list[object] = []
    task = None
    try:
        async with client.lock("outer"):
            try:
                async with client.lock("inner"):
                    task = lose(*lost)
                    await asyncio.sleep(FOR_EVER)
            except LeaseLost as error:
                raised.append(error.key)
                assert cancelling() == 0
    except LeaseLost as error:
        raised.append(error.key)
    assert task is not None
    await task
    assert raised == [b"lock:outer" if "outer" in lost else b"lock:inner"]
    assert cancelling() == 0


async def test_what_was_cancelled_before_is_counted_from_there(client: Client, lose: Lose) -> None:
    """A cancellation from before the block belongs to somebody else, and stays."""
    begun = asyncio.Event()

    async def worker() -> str:
        try:
            begun.set()
            await asyncio.sleep(FOR_EVER)
        except asyncio.CancelledError:
            pass  # it cleans up under a lock, with its cancellation still counted
        try:
            async with client.lock("cleanup"):
                lose("cleanup")
                await asyncio.sleep(FOR_EVER)
        except LeaseLost:
            return f"lost, {cancelling()} cancellation"
        return "not told"

    task = asyncio.create_task(worker())
    await begun.wait()
    task.cancel()
    assert await task == "lost, 1 cancellation"


async def test_on_lost_runs_in_the_loop_and_its_failure_harms_nobody(
    client: Client, lose: Lose
) -> None:
    told: list[Any] = []

    def on_lost(lease: Lease) -> None:
        told.append((lease, asyncio.get_running_loop()))
        raise RuntimeError("a callback's own trouble")

    with pytest.raises(LeaseLost):
        async with client.lock("a", on_lost=on_lost) as lease:
            task = lose("a")
            await asyncio.sleep(FOR_EVER)
    await task
    assert told == [(lease, asyncio.get_running_loop())]


async def test_on_lost_was_called_when_the_block_ends(
    client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fire_and_pause(guard: TaskGuard) -> None:
        fire(guard)
        time.sleep(0.1)  # the keeper's thread: the loop goes on meanwhile

    fire = TaskGuard.fire
    monkeypatch.setattr(TaskGuard, "fire", fire_and_pause)
    told: list[Lease] = []
    with pytest.raises(LeaseLost):
        async with client.lock("a", on_lost=told.append) as interrupted:
            revoking = asyncio.create_task(client.revoke("a", reason="a test"))
            await asyncio.sleep(FOR_EVER)
    await revoking
    assert told == [interrupted]
    keeper = client.session.keeper
    with pytest.raises(LeaseLost):
        async with client.lock("b", ttl=10, auto_renew=False, on_lost=told.append) as silent:
            keeper.unwatch(silent)  # it is late, and the block finds the loss itself
            clock.advance(9)
    await asyncio.sleep(0)
    assert told == [interrupted, silent]


class Suspended(SystemClock):
    """Jumps, as after a suspend: no timer has seen the time pass."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_a_block_that_finds_the_loss_first_tells_others_who_wait_for_it() -> None:
    clock = Suspended()
    store = store_for("memory://suspended", clock=clock)
    async with Client(StoreSession(store, clock=clock)) as client, asyncio.timeout(30):
        lease = await client.lock("a", ttl=60).acquire()
        waiting = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(0)
        with pytest.raises(LeaseLost):
            async with lease:
                clock.ahead = 100.0
        assert await waiting
