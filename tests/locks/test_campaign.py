"""Campaigns: a candidate in the background, those who wait for it, and blocks that rely on it."""

import asyncio
import gc
import threading
import time

import pytest

from dibs import LeaseLost, NotHeld
from tests.locks.test_election import Diary, who_leads
from tests.locks.waits import (
    PATIENCE,
    Beside,
    cancelling,
    let_go_on,
    time_passes,
    until,
    until_queued,
)
from tests.locks.worlds import World, away, heal, in_both_worlds, outage, site
from tests.servers.waiting import wait_until


@in_both_worlds
async def test_waits_end_in_time(w: World) -> None:
    leader = w.client.leader_election("main")
    await w.enter(leader)
    campaign = w.another().leader_election("main").campaign()
    with pytest.raises(NotHeld, match="not begun"):
        await w.get(campaign.wait())
    await w.enter(campaign)
    assert await w.get(campaign.wait_lost()) is True, "it doesn't lead"
    assert await w.get(campaign.wait(0)) is False
    ticker = threading.Timer(0.05, w.clock.advance, [1])
    ticker.start()
    assert await w.get(campaign.wait(1)) is False
    ticker.join()

    async def wait() -> bool:
        return bool(await w.get(campaign.wait()))

    waits = Beside(w, wait)
    await let_go_on(w, 0.02)
    await w.leave(campaign)
    assert await waits.result() is False, "the end of the campaign ends all waits"
    await w.leave(leader)


@in_both_worlds
async def test_it_is_elected_again_after_a_loss_and_waiters_notice(w: World) -> None:
    """The store is away past the deadline while nothing here has a turn; then it is back.

    A waiter that compared what it was told, instead of asking, would wait for ever: to it nothing changed.
    """
    store, client = site(w)
    diary = Diary()
    leader = client.leader_election("main", **diary.of("a"))
    campaign = leader.campaign()
    await w.enter(campaign)
    await w.get(campaign.wait())
    first = campaign.term
    with outage(store):
        w.clock.advance(10.5)
        assert not campaign.is_leader()
        assert not leader.is_leader()
    await time_passes(w, campaign.is_leader)
    assert await w.get(campaign.wait()) is True
    assert campaign.term.number > first.number
    assert campaign.term.token > first.token
    assert diary.told[:3] == ["a starts", "a stops", "a starts"]
    await w.leave(campaign)


@in_both_worlds
async def test_it_goes_on_through_an_outage_and_shows_its_error(w: World) -> None:
    store, client = site(w, connect_timeout=0)
    campaign = client.leader_election("main").campaign()
    assert campaign.error is None
    store.before = away
    await w.enter(campaign)
    await until(w, lambda: campaign.error is not None)
    assert "is away" in str(campaign.error)
    heal(store)
    await time_passes(w, campaign.is_leader)
    assert campaign.error is None
    await w.leave(campaign)


@in_both_worlds
async def test_a_shutdown_while_it_waits_leaves_no_place_behind(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    leader = w.client.leader_election("main")
    await w.enter(leader)
    other = w.another()
    diary = Diary()
    campaign = other.leader_election("main", **diary.of("b")).campaign()
    await w.enter(campaign)
    await until_queued(w, "main", 1, "leader")
    await w.leave(campaign)
    await until_queued(w, "main", 0, "leader")
    await w.leave(leader)
    await let_go_on(w, 0.02)
    assert who_leads(w) is None
    assert diary.told == [], "what never started doesn't stop"
    assert not caplog.records, "and nothing is wrong with that"


@in_both_worlds
async def test_a_shutdown_while_the_store_hangs_ends_in_time(w: World) -> None:
    store, client = site(w)
    hangs = threading.Event()

    def hang(_: object) -> None:
        hangs.wait(PATIENCE)

    if w.is_async:
        await client.lock("connected").locked()
        store.hold = asyncio.Event()
    else:
        store.before = hang
    campaign = client.leader_election("main").campaign()
    await w.enter(campaign)
    await let_go_on(w, 0.02)
    began = time.monotonic()
    await w.leave(campaign)
    assert time.monotonic() - began < 4
    hangs.set()
    if store.hold:
        store.hold.set()
    heal(store)
    await until(w, lambda: who_leads(w) is None)


@in_both_worlds
async def test_who_resigned_stands_again_only_after_a_pause(w: World) -> None:
    campaign = w.client.leader_election("main").campaign()
    await w.enter(campaign)
    await w.get(campaign.wait())
    campaign.resign()
    await until(w, lambda: who_leads(w) is None)
    await let_go_on(w, 0.1)
    w.clock.advance(1.9)
    await let_go_on(w, 0.1)
    assert not campaign.is_leader()
    w.clock.advance(0.6)
    assert await w.get(campaign.wait()) is True
    await w.leave(campaign)


@in_both_worlds
async def test_a_closed_client_ends_its_campaign(w: World) -> None:
    campaign = w.client.leader_election("main").campaign()
    await w.enter(campaign)
    await w.get(campaign.wait())
    w.client.session.keeper.close()
    assert await w.get(campaign.wait_lost()) is True
    assert await w.get(campaign.wait()) is False
    await w.leave(campaign)


@in_both_worlds
async def test_a_guarded_block_is_for_the_leader_only_and_raises_the_terms_end(w: World) -> None:
    campaign = w.client.leader_election("main").campaign()
    with pytest.raises(NotHeld, match="not begun"):
        await w.enter(campaign.guard())
    await w.enter(campaign)
    await w.get(campaign.wait())
    block = campaign.guard()
    term = await w.enter(block)
    assert term is campaign.term
    await w.leave(block)  # while it leads
    block = campaign.guard()
    await w.enter(block)
    campaign.resign()
    with pytest.raises(LeaseLost, match="its leader resigned"):
        await w.leave(block)
    assert term.lost
    await time_passes(w, campaign.is_leader)
    block = campaign.guard()
    await w.enter(block)
    campaign.resign()
    error = ValueError("mine")
    assert not await w.leave(block, error)
    assert "was lost" in error.__notes__[0]
    await w.leave(campaign)


async def test_a_guarded_body_is_cancelled_and_waited_for_before_anybody_else_leads(
    w: World,
) -> None:
    diary = Diary()
    other = w.another()
    async with w.client.leader_election("main", **diary.of("a")).campaign() as a:
        await a.wait()
        async with other.leader_election("main", **diary.of("b")).campaign() as b:
            await until_queued(w, "main", 1, "leader")
            with pytest.raises(LeaseLost):
                async with a.guard():
                    a.resign()
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        for _ in range(50):
                            await asyncio.sleep(0.001)
                        diary.told.append("cleaned up")
                        assert not b.is_leader()
            await b.wait()
    assert cancelling() == 0
    assert diary.told == ["a starts", "cleaned up", "a stops", "b starts", "b stops"]


def test_a_guarded_body_in_a_thread_is_waited_for_until_its_deadline() -> None:
    w = World("sync")
    campaign = w.client.leader_election("main").campaign()
    with campaign:
        campaign.wait()
        block = campaign.guard()
        term = block.__enter__()
        campaign.resign()
        time.sleep(0.05)
        assert who_leads(w).token == term.token, "it is still at work"
        w.clock.advance(10)
        assert who_leads(w).token == term.token, "and the store alone ends that"
        w.clock.advance(6)
        with pytest.raises(LeaseLost):
            block.__exit__(None, None, None)


def test_a_loop_that_ends_takes_its_campaign_along() -> None:
    w, diary = World("async"), Diary()

    async def main() -> None:
        campaign = w.client.leader_election("main", **diary.of("a")).campaign()
        await campaign.__aenter__()
        await campaign.wait()

    asyncio.run(main())
    gc.collect()
    assert diary.told == ["a starts", "a stops"]
    wait_until(lambda: who_leads(w) is None, "nobody leads any more")
