"""A hold that is lost or handed elsewhere is not passed on; who waits for it asks the store."""

import asyncio
import gc
import warnings

import pytest

from dibs import LeaseLost, NotHeld
from dibs.model import Acquire
from tests.primitives.crews import TTL, Crew, later, pair, site, until
from tests.primitives.worlds import World, in_both_worlds


@in_both_worlds
async def test_what_was_revoked_is_not_passed_on(w: World) -> None:
    _, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8)
    crew, first, second = await pair(w, lock)
    third = await crew.send("third", lock)
    await w.get(client.revoke("a", reason="a test"))
    await until(w, lambda: first.lease.lost)
    assert first.lease.reason == "revoked"
    await first.lets_go()
    client.hub.keeper.flush(5)
    lease = await second.holds()
    assert lease._id != first.lease._id
    assert lease.token > first.lease.token + 7
    await second.lets_go()
    assert (await third.holds())._id == lease._id, "those behind it have stayed together"
    await third.lets_go()


@in_both_worlds
async def test_revoked_in_mid_cohort(w: World) -> None:
    _, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8)
    crew, first, second = await pair(w, lock)
    third = await crew.send("third", lock)
    await first.lets_go()
    await second.holds()
    await w.get(client.revoke("a", reason="a test", now=True))
    await until(w, lambda: second.lease.lost)
    lease = await third.holds()
    assert lease._id != second.lease._id
    await second.lets_go()
    lease.ensure()
    await third.lets_go()


@in_both_worlds
async def test_what_expired_is_not_passed_on(w: World) -> None:
    store, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8, auto_renew=False)
    crew, first, second = await pair(w, lock)
    third = await crew.send("third", lock)
    await later(w, 27)
    assert first.lease.reason == "expired"
    await until(
        w,
        lambda: (
            sum(isinstance(c, Acquire) for b in store.batches for c in b) > 1
            if w.is_async
            else len(store.kept) > 1
        ),
    )
    assert not second.settled, "the store keeps it for a margin yet"
    await later(w, 4)
    lease = await second.holds()
    assert lease.token > first.lease.token
    await second.lets_go()
    await third.lets_go()
    await first.lets_go()
    assert crew.served == ["first", "second", "third"]


@in_both_worlds
async def test_what_was_forgotten_is_not_passed_on(w: World) -> None:
    _, client = site(w)
    lock, crew = client.lock("a", ttl=TTL, cohort=8), Crew(w)
    first = await w.get(lock.acquire())
    spent = first._id
    second = await crew.send("second", lock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del first
        gc.collect()
    client.hub.keeper.flush(5)
    assert (await second.holds())._id != spent
    await second.lets_go()


@in_both_worlds
async def test_what_was_detached_is_not_passed_on(w: World) -> None:
    _, client = site(w)
    _, first, second = await pair(w, client.lock("a", ttl=TTL, cohort=8))
    handle = first.lease.detach()
    with pytest.raises(NotHeld):
        first.lease.ensure()
    await first.lets_go()
    await w.turn()
    assert not second.settled
    attached = await w.get(w.another().attach(handle))
    await w.get(attached.release())
    assert (await second.holds())._id != first.lease._id
    await second.lets_go()


@in_both_worlds
async def test_leaving_a_block_that_was_lost_raises_and_passes_nothing_on(w: World) -> None:
    _, client = site(w)
    lock, crew = client.lock("a", ttl=TTL, cohort=8, auto_renew=False), Crew(w)
    first = await w.enter(lock)
    second = await crew.send("second", lock)
    w.clock.advance(27)
    if w.is_async:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
    with pytest.raises(LeaseLost):
        await w.leave(lock, asyncio.CancelledError() if w.is_async else None)
    client.hub.keeper.flush(5)
    assert (await second.holds())._id != first._id
    await second.lets_go()
