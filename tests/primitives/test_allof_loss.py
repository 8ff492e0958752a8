"""Losing one of several leases is losing them all: who is told, what is given up, what passes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import AllOf, BackendUnavailable, Client, LeaseLost
from dibs.model import Command, Release
from tests.primitives.crews import site, until
from tests.primitives.worlds import World, in_both_worlds

FOR_EVER = 3600


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def revoking(client: Client, *names: str) -> asyncio.Task[None]:
    """Revoke these as soon as their holder waits in its body."""

    async def revoke() -> None:
        for name in names:
            await client.revoke(name, reason="a test")

    return asyncio.create_task(revoke())


async def test_the_task_inside_is_cancelled_and_told_which(client: Client) -> None:
    both = AllOf(client.lock("a"), client.lock("b"))
    with pytest.raises(LeaseLost, match=r"lease on b .* was revoked \(a test\)") as caught:
        async with both as leases:
            task = revoking(client, "b")
            await asyncio.sleep(FOR_EVER)
    assert caught.value.key == b"lock:b"
    assert leases.reason == caught.value.reason == "revoked"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert cancelling() == 0
    assert not await client.lock("a").locked(), "the others are given up"
    await task


async def test_one_that_is_lost_twice_over_is_one_interruption(client: Client) -> None:
    both = AllOf(client.lock("a"), client.lock("b"))
    with pytest.raises(LeaseLost, match="lease on a") as caught:
        async with both.acquire():
            task = revoking(client, "b", "a")
            await asyncio.sleep(FOR_EVER)
    (note,) = caught.value.__notes__
    assert note.startswith("the lease on b ")
    assert cancelling() == 0
    await task


async def test_the_bodys_own_exception_passes_with_a_note(client: Client) -> None:
    with pytest.raises(LookupError, match="mine") as caught:
        async with AllOf(client.lock("a"), client.lock("b")):
            task = revoking(client, "a")
            try:
                await asyncio.sleep(FOR_EVER)
            except asyncio.CancelledError:
                raise LookupError("mine") from None
    (note,) = caught.value.__notes__
    assert note.startswith("the lease on a ")
    assert cancelling() == 0
    assert not await client.lock("b").locked()
    await task


async def test_somebody_elses_cancellation_passes(client: Client) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with AllOf(client.lock("a"), client.lock("b")):
            inside.set()
            await asyncio.sleep(FOR_EVER)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await client.revoke("a", reason="a test")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await client.lock("b").locked()


@in_both_worlds
async def test_a_lease_that_was_given_up_alone_is_no_loss(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a"), c.lock("b"))
    leases = await w.enter(both)
    assert await w.get(leases[0].release())
    assert not leases.lost
    await w.leave(both)
    assert await w.get(leases.release()) is False
    assert not await w.get(c.lock("b").locked())


@in_both_worlds
async def test_a_block_is_not_begun_with_one_that_is_lost(w: World) -> None:
    c = w.client
    leases = await w.get(w.module.AllOf(c.lock("a", auto_renew=False), c.lock("b")).acquire())
    w.clock.advance(27)
    assert leases[0].lost
    with pytest.raises(LeaseLost, match="lease on a"):
        await w.enter(leases)
    c.hub.keeper.flush(10)
    assert not await w.get(c.lock("b").locked()), "the other is given up"
    await w.turn()
    assert not w.is_async or cancelling() == 0


@in_both_worlds
async def test_leaving_says_what_was_lost_and_gives_up_the_rest(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a"), c.lock("b", auto_renew=False))
    leases = await w.enter(both)
    w.clock.advance(27)
    with pytest.raises(LeaseLost, match="lease on b"):
        leases.ensure()
    with pytest.raises(LeaseLost, match="lease on b"):
        await w.leave(both)
    assert not await w.get(c.lock("a").locked())
    await w.turn()


@in_both_worlds
async def test_it_waits_for_the_first_loss(w: World) -> None:
    c = w.client
    told: list[Any] = []
    both = w.module.AllOf(c.lock("a"), c.lock("b", on_lost=told.append))
    leases = await w.get(both.acquire())
    assert await w.get(leases.wait_lost(0)) is False
    await w.get(leases[0].release())
    assert await w.get(leases.wait_lost(0)) is False
    leases[1]._lose("revoked", "a test")
    assert await w.get(leases.wait_lost()) is True
    assert (leases.lost, leases.reason) == (True, "revoked")
    await w.get(leases.release())
    again = await w.get(both.acquire())
    await w.get(again.release())
    assert await w.get(again.wait_lost()) is False


async def test_a_lease_that_another_task_adopted_interrupts_that_one(client: Client) -> None:
    both = AllOf(client.lock("a"), client.lock("b"))
    adopted = asyncio.Event()

    async def take_over(lease: Any) -> None:
        lease.adopt()
        adopted.set()
        await asyncio.sleep(FOR_EVER)

    leases = await both.acquire()
    with pytest.raises(LeaseLost, match="lease on a"):
        async with leases:
            helper = asyncio.create_task(take_over(leases[0]))
            await adopted.wait()
            await client.revoke("a", reason="a test")
            with pytest.raises(asyncio.CancelledError):
                await helper
    assert cancelling() == 0


@in_both_worlds
async def test_leases_that_are_forgotten_are_given_up_and_said(w: World) -> None:
    c = w.client
    leases = await w.get(w.module.AllOf(c.lock("a"), c.lock("b")).acquire())
    kept = [leases]
    del leases
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        kept.clear()
    c.hub.keeper.flush(10)
    assert not await w.get(c.lock("a").locked())
    assert not await w.get(c.lock("b").locked())


@in_both_worlds
async def test_leaving_while_the_store_is_away_raises_nothing(w: World) -> None:
    store, client = site(w)
    both = w.module.AllOf(client.lock("a"), client.lock("b"))
    leases = await w.enter(both)
    outage = True

    def cut(commands: Sequence[Command]) -> None:
        if outage and any(isinstance(command, Release) for command in commands):
            raise BackendUnavailable("cut")

    store.before = cut
    await w.leave(both)
    assert leases.remaining == 0
    outage = False
    others = w.another()

    async def given_up() -> bool:
        w.clock.advance(0.2)  # the keeper tries again
        return not any([await w.get(others.lock(name).locked()) for name in "ab"])

    await until(w, given_up)
    await w.get(client.close())
