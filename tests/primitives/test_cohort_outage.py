"""Members of a cohort whose time is up, or whose store is away."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import AcquireTimeout, BackendUnavailable
from dibs.model import Acquire, Command, Release
from dibs.primitives.cohort import Cohort
from tests.primitives.crews import TRUSTED, TTL, Crew, Hand, later, pair, site
from tests.primitives.worlds import World, in_both_worlds


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("the store is away")


@in_both_worlds
async def test_a_time_out_in_line_tells_the_holder_and_leaves_nothing(w: World) -> None:
    _, client = site(w)
    lock = client.lock("a", ttl=300, cohort=8)
    crew, first, second = await pair(w, lock, wait=7)
    third, fourth = await crew.send("third", lock, wait=8), await crew.send("fourth", lock)
    await later(w, 7)
    error = await second.fails()
    assert isinstance(error, AcquireTimeout)
    assert f"(token {first.lease.token}, " in str(error)
    assert str(error).endswith("gave up after 7 s")
    await later(w, 1)
    told = await third.fails()
    assert isinstance(told, AcquireTimeout)
    assert crew.in_line(lock) == 1
    await first.lets_go()
    assert (await fourth.holds()).token == first.lease.token + 1
    await fourth.lets_go()
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_who_leaves_just_as_it_is_given_something_gets_nothing(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is up between the look at the line and the giving: one operation decides."""
    _, client = site(w)
    lock = client.lock("a", ttl=300, cohort=8)
    crew, first, second = await pair(w, lock, wait=7)
    third = await crew.send("third", lock)
    look = Cohort._first
    left: list[bool] = []

    def look_and_let_it_go(cohort: Cohort) -> Any:
        member = look(cohort)
        if not left and member is not None:
            left.append(member.take_nothing())
        return member

    monkeypatch.setattr(Cohort, "_first", look_and_let_it_go)
    await first.lets_go()
    lease = await third.holds()
    assert left == [True]
    assert lease.token == first.lease.token + 1
    await later(w, 7)
    assert isinstance(await second.fails(), AcquireTimeout)
    await third.lets_go()
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_who_gives_up_leaves_its_place_in_the_stores_queue_to_the_next(w: World) -> None:
    _, client = site(w)
    lock, others, crew = client.lock("a", ttl=300, cohort=8), w.another().lock("a"), Crew(w)
    held = await w.get(others.acquire())
    leader = await crew.send("leader", lock, wait=7)
    await crew.send("second", lock)
    await crew.send("third", lock)
    await crew.send("other", others)
    for _ in range(7):  # in steps, for whoever is silent for a window is passed over
        await later(w, 1)
    error = await leader.fails()
    assert isinstance(error, AcquireTimeout)
    assert (await w.get(lock.status())).waiting == 2
    await w.get(held.release())
    assert await crew.all_serve() == ["second", "third", "other"]
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_the_last_to_give_up_leaves_the_queue(w: World) -> None:
    _, client = site(w)
    lock, crew = client.lock("a", ttl=300, cohort=8), Crew(w)
    held = await w.get(w.another().lock("a").acquire())
    hands = [await crew.send(str(number), lock, wait=5) for number in range(3)]
    for _ in range(20):
        await later(w, 1)
        await w.turn()
    for hand in hands:
        assert isinstance(await hand.fails(), AcquireTimeout)
    assert (await w.get(lock.status())).waiting == 0
    assert lock._runtime().cohorts == {}
    await w.get(held.release())
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_an_outage_does_not_stop_passing_it_on(w: World) -> None:
    store, client = site(w)
    lock = client.lock("a", ttl=TTL, cohort=8)
    crew, first, second = await pair(w, lock)
    store.before = away
    await first.lets_go()
    lease = await second.holds()
    assert lease.token == first.lease.token + 1
    await second.lets_go()
    assert second.error is None, "a release never raises as the store is away"
    store.before = lambda _: None
    for _ in range(4):
        w.clock.advance(1)
        client.hub.keeper.flush(5)
    assert not await w.get(lock.locked()), "it was given up in the background"
    assert crew.served == ["first", "second"]


@in_both_worlds
async def test_an_outage_in_mid_cohort_is_told_to_each_in_time(w: World) -> None:
    store, client = site(w, connect_timeout=4)
    lock = client.lock("a", ttl=TTL, cohort=8)
    crew, first, second = await pair(w, lock)
    others = [await crew.send(str(number), lock) for number in range(5)]
    await first.lets_go()
    await second.holds()
    store.before = away
    began = w.clock.now()
    while not all(hand.over for hand in others):
        w.clock.advance(0.5)
        await w.turn()
        threading.Event().wait(0.001)
        assert w.clock.now() - began < TRUSTED + 4 + 4 + 2, "one after the other, and not at once"
    assert second.lease.reason == "expired"
    for hand in others:
        assert isinstance(await hand.fails(), BackendUnavailable)
    await second.lets_go()
    store.before = lambda _: None
    for _ in range(20):
        w.clock.advance(2)
        client.hub.keeper.flush(5)
    status = await w.get(lock.status())
    assert (status.holders, status.waiting) == ((), 0)


@in_both_worlds
async def test_a_grant_whose_reply_was_lost_is_one_persons(w: World) -> None:
    """The Acquire is sent again with its id, and the id is buried when the cohort is done with it."""
    store, client = site(w)
    lock, crew = client.lock("a", ttl=300, cohort=8), Crew(w)
    lost: list[Sequence[Command]] = []

    def lose_one_reply(commands: Sequence[Command]) -> None:
        if not lost and any(isinstance(command, Acquire) for command in commands):
            lost.append(commands)
            raise BackendUnavailable("the reply was lost")

    store.after = lose_one_reply
    first = Hand(w, "first", lock, crew.served, wait=20)
    while not first.settled:
        w.clock.advance(0.1)
        await w.turn()
        threading.Event().wait(0.001)
    second = await crew.send("second", lock)
    await first.lets_go()
    assert (await second.holds())._id == first.lease._id
    await second.lets_go()
    sent = [c for batch in (*store.batches, *store.kept) for c in batch]
    release = next(command for command in sent if isinstance(command, Release))
    assert release.bury >= 60
