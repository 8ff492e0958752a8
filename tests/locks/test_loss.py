"""How the loss of a lease reaches the body of an `async with`, and what it leaves alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import AllOf, Client, Lease, LeaseLost
from dibs.model import Notification, Release
from dibs.runtime.aio import TaskGuard
from dibs.runtime.notifications import ForwardingReceiver
from dibs.testing import ManualClock
from tests.locks.waits import cancelling
from tests.locks.worlds import KINDS

FOR_EVER = 3600

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
SOME_KINDS = pytest.mark.parametrize("kind", ["lock", "reentrant", "allof"])
"""Blocks that differ in how they are left."""


class InTheSameTurn(ForwardingReceiver):
    """The keeper has asked the store of a revocation before the loop goes on."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.session.loop_runtime().receiver)
        self._keeper = client.session.keeper

    def deliver(self, notification: Notification) -> None:
        super().deliver(notification)
        assert self._keeper.flush(10)


class Losing:
    """Ends leases as soon as their holder waits in its body."""

    def __init__(self, client: Client, clock: ManualClock) -> None:
        self._client, self._clock = client, clock
        self._tasks: list[asyncio.Task[None]] = []

    def revoke(self, *names: str, kind: Any = "lock") -> asyncio.Task[None]:
        async def revoke() -> None:
            for name in names:
                await self._client.revoke(name, kind=kind, reason="a test")

        self._tasks.append(asyncio.create_task(revoke()))
        return self._tasks[-1]

    def expire(self) -> None:
        """All leases with a ttl of 10 s that are not renewed."""
        asyncio.get_running_loop().call_soon(self._clock.advance, 9)

    async def over(self) -> None:
        await asyncio.gather(*self._tasks)


@pytest.fixture
async def lose(client: Client, clock: ManualClock) -> AsyncIterator[Losing]:
    client.session.loop_runtime().receiver = InTheSameTurn(client)
    losing = Losing(client, clock)
    yield losing
    await losing.over()


def revoked_kind(kind: str) -> str:
    return kind if kind in ("semaphore", "rwlock", "leader") else "lock"


@EVERY_KIND
async def test_the_task_inside_is_cancelled_and_the_block_raises(
    client: Client, lose: Losing, kind: str
) -> None:
    with pytest.raises(LeaseLost, match=r"it was revoked \(a test\)") as caught:
        async with KINDS[kind](client) as lease:
            lose.revoke("a", kind=revoked_kind(kind))
            await asyncio.sleep(FOR_EVER)
    assert caught.value.key == f"{revoked_kind(kind)}:a".encode()
    assert caught.value.reason == lease.reason == "revoked"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert cancelling() == 0
    assert not await client.lock("b").locked(), "the other one is released"


@SOME_KINDS
async def test_by_its_deadline_without_any_word_from_the_store(
    client: Client, lose: Losing, kind: str
) -> None:
    with pytest.raises(LeaseLost) as caught:
        async with KINDS[kind](client, ttl=10, auto_renew=False):
            lose.expire()
            await asyncio.sleep(FOR_EVER)
    assert caught.value.reason == "expired"
    assert cancelling() == 0


@SOME_KINDS
async def test_the_bodys_own_exception_passes_with_a_note(
    client: Client, lose: Losing, kind: str
) -> None:
    with pytest.raises(ValueError, match="cleanup") as caught:
        async with KINDS[kind](client):
            lose.revoke("a", kind=revoked_kind(kind))
            try:
                await asyncio.sleep(FOR_EVER)
            except asyncio.CancelledError:
                raise ValueError("cleanup") from None
    (note,) = caught.value.__notes__
    assert "was lost" in note
    assert cancelling() == 0
    assert not await client.lock("b").locked()


@SOME_KINDS
@pytest.mark.parametrize("first", ["theirs", "ours"])
async def test_somebody_elses_cancellation_is_never_swallowed(
    client: Client, lose: Losing, kind: str, first: str
) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with KINDS[kind](client):
            entered.set()
            await asyncio.sleep(FOR_EVER)

    task = asyncio.create_task(hold())
    await entered.wait()
    if first == "theirs":
        task.cancel()
        await lose.revoke("a", kind=revoked_kind(kind))
    else:
        await lose.revoke("a", kind=revoked_kind(kind))
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert task.cancelling() == 1
    assert not await client.lock("b").locked()


async def test_without_a_block_or_after_it_a_loss_cancels_nobody(
    client: Client, lose: Losing
) -> None:
    lease = await client.lock("a").acquire()
    await lose.revoke("a")
    assert await lease.wait_lost()
    with pytest.raises(LeaseLost):
        async with lease:
            pytest.fail("entering a lost lease raises")
    async with client.lock("b"):
        pass
    await lose.revoke("b")  # its body is over
    await asyncio.sleep(0)
    assert cancelling() == 0


@pytest.mark.parametrize("lost", [["outer"], ["inner"], ["outer", "inner"], ["inner", "outer"]])
async def test_nested_leases_raise_for_the_outermost_that_was_lost(
    client: Client, lose: Losing, lost: list[str]
) -> None:
    raised: list[object] = []
    try:
        async with client.lock("outer"):
            try:
                async with client.lock("inner"):
                    lose.revoke(*lost)
                    await asyncio.sleep(FOR_EVER)
            except LeaseLost as error:
                raised.append(error.key)
                assert cancelling() == 0
    except LeaseLost as error:
        raised.append(error.key)
    assert raised == [b"lock:outer" if "outer" in lost else b"lock:inner"]
    assert cancelling() == 0


async def test_the_task_that_adopted_a_lease_is_the_one_interrupted(
    client: Client, lose: Losing
) -> None:
    lease = await client.lock("a").acquire()

    async def worker() -> str:
        with pytest.raises(LeaseLost) as caught:
            async with lease.adopt():
                lose.revoke("a")
                await asyncio.sleep(FOR_EVER)
        return str(caught.value.reason)

    assert await asyncio.create_task(worker()) == "revoked"
    assert cancelling() == 0


async def test_on_lost_was_called_in_the_loop_when_the_block_ends_and_may_fail(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the keeper's thread gets no further for a while once it has interrupted the task."""

    def fire_and_pause(guard: TaskGuard) -> None:
        fire(guard)
        time.sleep(0.1)

    fire = TaskGuard.fire
    monkeypatch.setattr(TaskGuard, "fire", fire_and_pause)
    told: list[Any] = []

    def on_lost(lease: Lease) -> None:
        told.append((lease, asyncio.get_running_loop()))
        raise RuntimeError("a callback's own trouble")

    with pytest.raises(LeaseLost):
        async with client.lock("a", on_lost=on_lost) as lease:
            revoking = asyncio.create_task(client.revoke("a", reason="a test"))
            await asyncio.sleep(FOR_EVER)
    await revoking
    assert told == [(lease, asyncio.get_running_loop())]


async def test_leases_that_are_gone_at_the_end_of_a_block_are_reported(client: Client) -> None:
    """The store has lost them, and no renewal was due."""
    told: list[Lease] = []
    both = AllOf(*(client.lock(name, on_lost=told.append) for name in ("a", "b")))
    with pytest.raises(LeaseLost, match="no such lease any more") as loss:
        async with both as leases:
            await forget(client, *leases)
    assert len(loss.value.__notes__) == 1, "the other one's"
    with pytest.raises(LookupError) as error:
        async with client.lock("a", on_lost=told.append) as lease:
            await forget(client, lease)
            raise LookupError("the body's own")
    assert "no such lease any more" in error.value.__notes__[0]
    await asyncio.sleep(0)
    assert told == [*leases, lease]
    assert [each.reason for each in told] == ["expired"] * 3


async def forget(client: Client, *leases: Lease) -> None:
    """End leases in the store behind their holder's back."""
    for lease in leases:
        await client.session.loop_runtime().call(Release(lease.key, lease._id))


async def test_a_block_that_finds_the_loss_first_tells_all_who_wait_for_it(
    client: Client, clock: ManualClock
) -> None:
    """The machine was suspended: no timer has seen the time pass."""
    told: list[Lease] = []
    lease = await client.lock("a", ttl=60, on_lost=told.append).acquire()
    waiting = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        async with lease:
            clock._move(clock.now() + 100)
    assert await asyncio.wait_for(waiting, 30)
    assert told == [lease]
