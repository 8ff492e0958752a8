"""What a holder gets of the time that the one before it had."""

import pytest

from dibs.model import Renew
from tests.primitives.crews import TRUSTED, TTL, Crew, later, pair, site, until
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


def renewals(store: TappedStore) -> int:
    batches = (*store.batches, *store.kept)
    return sum(isinstance(command, Renew) for batch in batches for command in batch)


@in_both_worlds
async def test_nobodys_time_grows_by_passing_it_on(w: World) -> None:
    store, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8)
    crew, first, second = await pair(w, lock)
    third = await crew.send("third", lock)
    await later(w, 4)
    await first.lets_go()
    assert (await second.holds()).remaining == pytest.approx(TRUSTED - 4)
    await later(w, 4)
    await second.lets_go()
    assert (await third.holds()).remaining == pytest.approx(TRUSTED - 8)
    assert renewals(store) == 0
    await later(w, 2)
    assert renewals(store) == 1, "due when it would have been without passing it on"
    assert third.lease.remaining == pytest.approx(TRUSTED, abs=TTL / 16)
    await later(w, 100)
    third.lease.ensure()
    await third.lets_go()
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_a_renewal_that_is_overdue_is_made_at_once(w: World) -> None:
    store, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8, auto_renew=False)
    _, first, second = await pair(w, lock)
    await later(w, 15)
    assert renewals(store) == 0
    await first.lets_go()
    assert (await second.holds())._id == first.lease._id
    await later(w, 0)
    await until(w, lambda: renewals(store) == 1)
    assert second.lease.remaining == pytest.approx(TRUSTED)
    await later(w, 25)
    assert renewals(store) == 1, "it is not renewed any further, as was asked"
    second.lease.ensure()
    await second.lets_go()


@in_both_worlds
async def test_a_hold_that_is_nearly_over_goes_back_to_the_store(w: World) -> None:
    _, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8, auto_renew=False)
    _, first, second = await pair(w, lock)
    await later(w, 22)
    await first.lets_go()
    lease = await second.holds()
    assert lease._id != first.lease._id
    assert lease.token > first.lease.token + 7
    assert lease.remaining == pytest.approx(TRUSTED)
    await second.lets_go()


@in_both_worlds
async def test_a_pushed_grant_is_passed_on_with_its_window_and_claimed_in_time(w: World) -> None:
    store, client = site(w)
    other = await w.get(w.client.lock("a").acquire())
    lock, crew = client.lock("a", ttl=TTL, cohort=8), Crew(w)
    first, second = await crew.send("first", lock), await crew.send("second", lock)
    await w.get(other.release())
    assert (await first.holds()).remaining < 5
    await later(w, 1)
    await first.lets_go()
    assert (await second.holds()).remaining < 4
    assert renewals(store) == 0
    await later(w, 1)
    assert renewals(store) == 1, "it is claimed when the first would have had to"
    assert second.lease.remaining > 20
    await second.lets_go()


@in_both_worlds
async def test_max_hold_counts_for_each_holder(w: World) -> None:
    _, client = site(w)
    lock = client.lock("a", ttl=TTL, max_hold=20, cohort=8)
    crew, first, second = await pair(w, lock)
    third = await crew.send("third", lock)
    await later(w, 19)
    await first.lets_go()
    assert (await second.holds())._id == first.lease._id
    await later(w, 19)
    second.lease.ensure()
    await later(w, 2)
    assert second.lease.reason == "max_hold"
    await second.lets_go()
    client.hub.keeper.flush(5)
    lease = await third.holds()
    assert lease._id != first.lease._id, "what was lost is not passed on"
    await third.lets_go()


@in_both_worlds
async def test_a_renewal_by_hand_is_of_use_to_the_next(w: World) -> None:
    _, client = site(w)
    _, first, second = await pair(w, client.lock("a", ttl=TTL, cohort=8))
    await w.get(first.lease.renew(300))
    await first.lets_go()
    assert (await second.holds()).remaining > 200
    assert second.lease.ttl == TTL
    await second.lets_go()
