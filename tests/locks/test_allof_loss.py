"""Losing one of several leases is losing them all: who is told, what is given up, what passes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import AllOf, BackendUnavailable, Client, Forbidden, LeaseLost
from dibs.model import Acquire, Command, Failed, Release, Reply
from dibs.session import StoreSession
from tests.changed_store import ChangedStore
from tests.locks.crews import Hand, site, until
from tests.locks.waits import cancelling
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore

FOR_EVER = 3600


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
        async with both.acquire() as leases:
            task = revoking(client, "b", "a")
            try:
                await asyncio.sleep(FOR_EVER)
            finally:
                while not all(lease.lost for lease in leases):
                    await asyncio.sleep(0)
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
    c.session.keeper.flush(10)
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
    c.session.keeper.flush(10)
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


@in_both_worlds
async def test_an_answer_that_is_lost_is_waited_for_and_leaves_nothing(w: World) -> None:
    """Nobody knows whether the try arrived: its ids are buried, and it begins anew, key by key."""
    store, client = site(w)
    failures = iter([True])

    def lose(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands) and next(failures, False):
            raise BackendUnavailable("the answer is lost")

    store.after = lose
    both = w.module.AllOf(client.lock("a"), client.lock("b"))
    hand = Hand(w, "both", both, [])
    leases = await hand.holds()
    leases.ensure()
    others = w.another()
    for name in "ab":
        status = await w.get(others.status(name))
        assert len(status.holders) == 1
        assert status.waiters == ()
    await hand.lets_go()
    client.session.keeper.flush(10)
    for name in "ab":
        assert not await w.get(others.lock(name).locked())
    await w.get(client.close())


@in_both_worlds
async def test_a_lost_answer_to_one_try_is_an_error_and_leaves_nothing(w: World) -> None:
    store, client = site(w)

    def lose(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands):
            raise BackendUnavailable("the answer is lost")

    store.after = lose
    both = w.module.AllOf(client.lock("a"), client.lock("b"), wait=0)
    with pytest.raises(BackendUnavailable, match="the answer is lost"):
        await w.get(both.acquire())
    store.after = lambda _: None
    client.session.keeper.flush(10)
    leases = await w.get(both.acquire())
    await w.get(leases.release())
    await w.get(client.close())


class ForbiddingStore(ChangedStore):
    """Refuses to touch one key, and does the rest."""

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        refused = Failed("forbidden", "no rights on this key")
        return [
            refused if isinstance(command, Acquire) and command.key == b"lock:b" else reply
            for command, reply in zip(commands, replies, strict=True)
        ]


@in_both_worlds
async def test_an_error_of_one_is_raised_and_the_others_given_up(w: World) -> None:
    store: Any = ForbiddingStore(TappedStore(store=w.store, turns=1))
    client = w.module.Client(StoreSession(store, clock=w.clock))
    three = w.module.AllOf(*(client.lock(name) for name in "abc"))
    for acquire in (three.acquire, three.try_acquire):
        with pytest.raises(Forbidden, match="b: no rights on this key"):
            await w.get(acquire())
    client.session.keeper.flush(10)
    others = w.another()
    for name in "ac":
        assert not await w.get(others.lock(name).locked())
    await w.get(client.close())


@in_both_worlds
async def test_a_store_that_is_away_is_tried_until_the_time_is_over(w: World) -> None:
    store, client = site(w, connect_timeout=2)

    def away(commands: Sequence[Command]) -> None:
        raise BackendUnavailable("away")

    store.before = away
    hand = Hand(w, "both", w.module.AllOf(client.lock("a"), client.lock("b"), wait=3), [])

    async def over() -> bool:
        w.clock.advance(0.25)
        await w.turn()
        return hand.over

    await until(w, over)
    assert isinstance(hand.error, BackendUnavailable)
    store.before = lambda _: None
    others = w.another()
    for name in "ab":
        lease = await w.get(others.lock(name).try_acquire())
        await w.get(lease.release())
    await w.get(client.close())
