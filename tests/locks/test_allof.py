"""Several leases, all or nothing: what is given, in how many round trips, and how it is waited for."""

from inspect import isawaitable
from typing import Any

import pytest

from dibs import AcquireTimeout, LeaseLost, NotHeld, Reentrant
from dibs.model import Acquire, Renew
from tests.locks.crews import TRUSTED, Hand, later, site, until
from tests.locks.worlds import World, in_both_worlds
from tests.stores.round_trips import Counter, Mode, Side, counter_of


def names(leases: Any) -> list[bytes]:
    return [lease.key for lease in leases]


async def waiting(w: World, lock: Any) -> bool:
    return bool((await w.get(lock.status())).waiting)


async def in_time(w: World, condition: Any) -> None:
    """Time goes on until it is so: after a leap a waiter's place was silent, and has to speak up first."""

    async def so() -> bool:
        found = condition()
        found = await found if isawaitable(found) else found
        if not found:
            await later(w, 0.01)
        return bool(found)

    await until(w, so)


async def free(w: World, *locks: Any) -> list[bool]:
    """Which of these somebody else could have at once."""
    found = []
    for lock in locks:
        lease = await w.get(w.another().lock(lock.name).try_acquire())
        found.append(lease is not None)
        if lease is not None:
            await w.get(lease.release())
    return found


# -- what is given ----------------------------------------------------------------------------------


@in_both_worlds
async def test_leases_come_in_the_order_of_the_arguments(w: World) -> None:
    c, lock = w.client, w.client.rwlock("r")
    both = w.module.AllOf(c.lock("b"), (c.semaphore("gpu", 4), 2), lock.read(), c.lock("a"))
    leases = await w.get(both.acquire())
    assert names(leases) == [b"lock:b", b"semaphore:gpu", b"rwlock:r", b"lock:a"]
    assert leases[1].slots == (0, 1)
    assert leases[2].mode == "read"
    assert leases.tokens == tuple(lease.token for lease in leases)
    assert leases.tokens[0] > 0
    assert [lease.key for lease in leases[1:3]] == [b"semaphore:gpu", b"rwlock:r"]
    assert (leases.lost, leases.reason) == (False, None)
    assert await w.get(leases.release()) is True
    assert await w.get(leases.release()) is False
    with pytest.raises(NotHeld, match="b was released"):
        leases.ensure()
    assert leases.remaining == 0


@in_both_worlds
async def test_a_name_that_repeats_is_one_lease(w: World) -> None:
    c = w.client
    leases = await w.get(w.module.AllOf(c.lock("a"), c.lock("b"), c.lock("a")).acquire())
    assert len(leases) == 3
    assert leases[0] is leases[2]
    assert leases[0] is not leases[1]
    status = await w.get(c.status("a"))
    assert len(status.holders) == 1
    assert await w.get(leases.release()) is True


@in_both_worlds
async def test_another_one_among_them_is_its_members(w: World) -> None:
    c = w.client
    inner = w.module.AllOf(c.lock("c"), c.lock("a"), ttl=10)
    leases = await w.get(w.module.AllOf(c.lock("b"), inner).acquire())
    assert names(leases) == [b"lock:b", b"lock:c", b"lock:a"]
    assert [lease.ttl for lease in leases] == [30, 10, 10]
    await w.get(leases.release())


@in_both_worlds
async def test_the_wait_of_one_among_them_counts_with_the_others(w: World) -> None:
    c, all_of = w.client, w.module.AllOf
    inner = all_of(c.lock("c", wait=1), c.lock("a", wait=None), wait=7)
    assert all_of(c.lock("b", wait=9), inner)._wait == 7
    assert all_of(c.lock("b", wait=2), inner)._wait == 2
    assert all_of(c.lock("b", wait=9), inner, wait=30)._wait == 30
    assert all_of(c.lock("b", wait=9), all_of(inner, wait=None))._wait == 9
    assert all_of(all_of(inner)).__dict__["_wait"] == 7
    held = await w.get(w.another().lock("b").acquire())
    with pytest.raises(AcquireTimeout):
        await w.get(all_of(c.lock("b"), all_of(c.lock("a"), wait=0)).acquire())
    await w.get(held.release())


@in_both_worlds
async def test_the_on_wait_of_one_among_them_is_told_of_its_own(w: World) -> None:
    c, others, all_of = w.client, w.another(), w.module.AllOf
    told: list[tuple[str, bytes]] = []

    def teller(name: str) -> Any:
        return lambda wait: told.append((name, wait.key))

    a, b, x = c.lock("a"), c.lock("b", on_wait=teller("b")), c.lock("x")
    inner = all_of(a, b, on_wait=teller("inner"))
    for both, key, expected in (
        (all_of(x, inner), "a", ["inner"]),
        (all_of(inner, x), "x", []),
        (all_of(a, inner), "a", ["inner"]),
        (all_of(inner, x, on_wait=teller("outer")), "a", ["outer"]),
        (all_of(x, b), "b", ["b"]),
    ):
        held = await w.get(others.lock(key).acquire())
        hand = Hand(w, "all", both, [])
        await in_time(w, lambda key=key: waiting(w, others.lock(key)))
        await in_time(w, lambda expected=expected: len(told) >= len(expected))
        await w.get(held.release())
        await hand.holds()
        await hand.lets_go()
        assert {*told} == {(name, b"lock:" + key.encode()) for name in expected}
        told.clear()


@in_both_worlds
async def test_the_least_time_is_what_remains(w: World) -> None:
    c = w.client
    each = w.module.AllOf(c.lock("a", ttl=30), c.lock("b", ttl=3))
    leases = await w.get(each.acquire())
    assert leases.remaining == min(lease.remaining for lease in leases) < 3
    with pytest.raises(LeaseLost, match="lease on b has 3 s left"):
        leases.ensure("10s")
    await w.get(leases.release())
    same = await w.get(w.module.AllOf(c.lock("a", ttl=30), c.lock("b", ttl=3), ttl="1m").acquire())
    assert [lease.ttl for lease in same] == [60, 60]
    await w.get(same.release())


@in_both_worlds
async def test_it_is_a_block_and_leaves_nothing_behind(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a"), c.lock("b"))
    leases = await w.enter(both)
    assert await free(w, c.lock("a"), c.lock("b")) == [False, False]
    error = LookupError("mine")
    await w.leave(both, error)
    assert leases.remaining == 0
    assert await free(w, c.lock("a"), c.lock("b")) == [True, True]
    block = both.acquire(wait=0)
    leases = await w.enter(block)
    assert not leases.lost
    await w.leave(block)
    leases = await w.get(both.try_acquire())
    entered = await w.enter(leases)
    assert entered is leases
    await w.leave(leases)
    assert await free(w, c.lock("a"), c.lock("b")) == [True, True]


# -- in how many round trips ------------------------------------------------------------------------


def sent(w: World, store: Any) -> list[list[str]]:
    """What travelled together since the last time, as the names of the commands."""
    log = store.batches if w.is_async else store.kept
    found = [[type(command).__name__ for command in batch] for batch in log]
    log.clear()
    return found


@in_both_worlds
async def test_a_refused_try_is_one_round_trip_and_one_to_undo_it(w: World) -> None:
    store, client = site(w)
    held = await w.get(w.another().lock("b").acquire())
    three = w.module.AllOf(*(client.lock(name) for name in "cab"))
    assert await w.get(three.try_acquire()) is None
    assert sent(w, store) == [["Acquire"] * 3, ["Release"] * 2]
    queued = [command for batch in store.batches for command in batch]
    assert not any(isinstance(command, Acquire) and command.queue for command in queued)
    with pytest.raises(AcquireTimeout, match="b is held by") as refusal:
        await w.get(three.acquire(wait=0))
    assert refusal.value.key == b"lock:b"
    assert [holder.token for holder in refusal.value.holders] == [held.token]
    assert await free(w, client.lock("a"), client.lock("c")) == [True, True]
    await w.get(held.release())
    await w.get(client.close())


# -- how it is waited for ---------------------------------------------------------------------------


@in_both_worlds
async def test_it_waits_for_one_key_at_a_time_and_holds_those_before(w: World) -> None:
    c, others = w.client, w.another()
    held = {name: await w.get(others.lock(name).acquire()) for name in "bd"}
    hand = Hand(w, "all", w.module.AllOf(*(c.lock(name) for name in "edcba")), [])
    await until(w, lambda: waiting(w, others.lock("b")))
    assert await free(w, *(others.lock(name) for name in "ace")) == [False, True, True]
    assert not await waiting(w, others.lock("d")), "it is queued at one key only"
    await w.get(held["b"].release())
    await until(w, lambda: waiting(w, others.lock("d")))
    assert await free(w, *(others.lock(name) for name in "abce")) == [False, False, False, True]
    await w.get(held["d"].release())
    leases = await hand.holds()
    assert names(leases) == [b"lock:e", b"lock:d", b"lock:c", b"lock:b", b"lock:a"]
    await hand.lets_go()
    assert await free(w, *(others.lock(name) for name in "abcde")) == [True] * 5


@in_both_worlds
async def test_one_who_waits_does_not_keep_from_others_what_comes_later(w: World) -> None:
    """It tries what it can't keep, and gives it back before it waits."""
    c, others = w.client, w.another()
    held = await w.get(others.lock("a").acquire())
    hand = Hand(w, "both", w.module.AllOf(c.lock("b"), c.lock("a")), [])
    await until(w, lambda: waiting(w, others.lock("a")))
    between = await w.get(others.lock("b").try_acquire())
    assert between is not None
    await w.get(held.release())
    await until(w, lambda: waiting(w, others.lock("b")))
    await w.get(between.release())
    await hand.holds()
    await hand.lets_go()


@in_both_worlds
async def test_after_its_time_it_says_who_is_in_the_way_and_keeps_nothing(w: World) -> None:
    c, others = w.client, w.another()
    held = await w.get(others.lock("b", label="web").acquire())
    hand = Hand(w, "both", w.module.AllOf(c.lock("a"), c.lock("b"), wait=7), [])
    await until(w, lambda: waiting(w, others.lock("b")))
    await later(w, 7.1)
    error = await hand.fails()
    assert isinstance(error, AcquireTimeout)
    assert str(error).startswith("b is held by ")
    assert "gave up on all 2 after 7 s" in str(error)
    assert [holder.token for holder in error.holders] == [held.token]
    assert error.key == b"lock:b"
    assert not await waiting(w, others.lock("b"))
    assert await free(w, others.lock("a")) == [True]
    await w.get(held.release())


@in_both_worlds
async def test_the_time_is_for_all_of_them_together(w: World) -> None:
    c, others = w.client, w.another()
    held = {name: await w.get(others.lock(name).acquire()) for name in "ab"}
    hand = Hand(w, "both", w.module.AllOf(c.lock("a"), c.lock("b")), [], wait=4)
    await until(w, lambda: waiting(w, others.lock("a")))
    await later(w, 2)
    await w.get(held["a"].release())
    await until(w, lambda: waiting(w, others.lock("b")))
    await later(w, 2.1)
    assert isinstance(await hand.fails(), AcquireTimeout)
    assert await free(w, others.lock("a")) == [True]
    await w.get(held["b"].release())


@in_both_worlds
async def test_unless_it_is_told_it_waits_as_long_as_the_shortest_of_them(w: World) -> None:
    c = w.client
    held = await w.get(w.another().lock("a").acquire())
    for both in (
        w.module.AllOf(c.lock("b"), c.lock("a", wait=0)),
        w.module.AllOf(c.lock("b", wait=9), c.lock("a"), wait=0),
    ):
        with pytest.raises(AcquireTimeout):
            await w.get(both.acquire())
    await w.get(held.release())


@in_both_worlds
async def test_what_is_held_while_it_waits_is_renewed_also_if_it_would_not_be(w: World) -> None:
    """The time of leases that nobody renews counts from when all are there."""
    store, client = site(w)
    others = w.another()
    held = await w.get(others.lock("b", ttl=600).acquire())
    both = w.module.AllOf(
        client.lock("a", auto_renew=False), client.lock("b", auto_renew=False, ttl=600)
    )
    hand = Hand(w, "both", both, [])
    await until(w, lambda: waiting(w, others.lock("b")))
    for _ in range(20):
        await later(w, 5)
    assert await free(w, others.lock("a")) == [False]
    await later(w, 9)
    await w.get(held.release())
    await in_time(w, lambda: hand.settled)
    leases = await hand.holds()
    assert leases[0].remaining == pytest.approx(TRUSTED, abs=0.5)
    renewals = [
        command
        for batch in (store.batches if w.is_async else store.kept)
        for command in batch
        if isinstance(command, Renew) and command.key == b"lock:a"
    ]
    assert renewals
    await later(w, 27)
    assert leases[0].reason == "expired", "nobody renews it any more"
    assert leases.reason == "expired"
    assert not leases[1].lost
    hand._told.set()
    await until(w, lambda: hand.over)
    await w.get(client.close())


@in_both_worlds
async def test_max_hold_counts_from_when_all_are_there(w: World) -> None:
    c, others = w.client, w.another()
    held = await w.get(others.lock("b").acquire())
    hand = Hand(w, "both", w.module.AllOf(c.lock("a", max_hold=60), c.lock("b")), [])
    await until(w, lambda: waiting(w, others.lock("b")))
    for _ in range(10):
        await later(w, 9)
    await w.get(held.release())
    await in_time(w, lambda: hand.settled)
    leases = await hand.holds()
    for _ in range(5):
        await later(w, 10)
    assert not leases.lost
    await later(w, 10)
    assert leases.reason == leases[0].reason == "max_hold"
    hand._told.set()
    await until(w, lambda: hand.over)


@in_both_worlds
async def test_what_is_lost_while_it_waits_is_got_anew(w: World) -> None:
    c, others = w.client, w.another()
    told: list[Any] = []
    held = await w.get(others.lock("c").acquire())
    three = w.module.AllOf(c.lock("a"), c.lock("b", on_lost=told.append), c.lock("c"))
    hand = Hand(w, "three", three, [])
    await until(w, lambda: waiting(w, others.lock("c")))
    before = (await w.get(others.status("b"))).holders[0].token
    assert await w.get(others.revoke("b", reason="a test", now=True)) == 1
    thief = await w.get(others.lock("b").acquire())
    await later(w, 11)  # a renewal was due, at the latest that tells
    await w.get(held.release())
    await in_time(w, lambda: waiting(w, others.lock("b")))
    assert await free(w, others.lock("c")) == [True], (
        "not kept while it waits for what comes before"
    )
    await w.get(thief.release())
    leases = await hand.holds()
    leases.ensure()
    assert leases[1].token > thief.token > before
    assert told == [], "its holder never had it"
    await hand.lets_go()


# -- what the task or thread holds already ----------------------------------------------------------


@in_both_worlds
async def test_what_is_held_already_is_refused_before_anything_is_acquired(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.lock("b").acquire())
    both = w.module.AllOf(client.lock("a"), client.lock("b"))
    sent(w, store)
    with pytest.raises(Reentrant, match="b is already held"):
        await w.get(both.acquire())
    assert await w.get(both.try_acquire()) is None
    assert sent(w, store) == []
    await w.get(lease.release())
    await w.get(client.close())


@in_both_worlds
async def test_a_reentrant_lock_is_held_once_more(w: World) -> None:
    store, client = site(w)
    lock = client.lock("b", reentrant=True)
    both = w.module.AllOf(client.lock("a"), lock)
    outer = await w.get(lock.acquire())
    sent(w, store)
    leases = await w.get(both.acquire())
    assert sent(w, store) == [["Acquire"]]
    assert leases[1].token == outer.token
    assert await w.get(outer.release())
    leases.ensure()
    inner = await w.get(lock.acquire())
    assert await w.get(leases.release()) is True
    inner.ensure()
    assert await free(w, client.lock("a"), client.lock("b")) == [True, False]
    assert await w.get(inner.release())
    assert await free(w, client.lock("b")) == [True]
    leases = await w.get(both.acquire())
    sent(w, store)
    assert await w.get(leases.release())
    assert sent(w, store) == [["Release"] * 2]
    held = await w.get(w.another().lock("a").acquire())
    outer = await w.get(lock.acquire())
    assert await w.get(both.try_acquire()) is None
    assert await w.get(outer.release())
    assert await free(w, client.lock("b")) == [True], "what was taken again is given back"
    await w.get(held.release())
    await w.get(client.close())


@in_both_worlds
async def test_whoever_asked_is_told_how_the_wait_goes(w: World) -> None:
    c, others = w.client, w.another()
    told: list[bytes] = []
    held = await w.get(others.lock("b").acquire())
    both = w.module.AllOf(c.lock("a"), c.lock("b"), on_wait=lambda wait: told.append(wait.key))
    hand = Hand(w, "both", both, [])
    await until(w, lambda: told)
    assert told[0] == b"lock:b"
    await w.get(held.release())
    await hand.holds()
    await hand.lets_go()


TTL = 30.0


@pytest.fixture(params=["redis", "postgres"])
def counter(request: pytest.FixtureRequest) -> Counter:
    return counter_of(request.param, request)


@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_several_are_acquired_in_one_round_trip_and_released_in_one(
    mode: Mode, counter: Counter
) -> None:
    side = Side(mode, counter)

    async def case() -> None:
        client = side.client()
        both = side.all_of(
            client.lock("b", ttl=TTL),
            (client.semaphore("s", 4, ttl=TTL), 2),
            client.rwlock("r", ttl=TTL).read(),
            client.lock("a", ttl=TTL),
        )
        await side.get((await side.get(both.acquire())).release())  # connected from here on
        side.trips()
        for _ in range(3):
            leases = await side.get(both.acquire())
            assert side.trips() == 1
            await side.get(leases.release())
            assert side.trips() == 1

    side.run(case())


@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_a_wait_is_a_try_its_undoing_a_place_and_a_push(mode: Mode, counter: Counter) -> None:
    side = Side(mode, counter)

    async def case() -> None:
        holder, waiter = side.client(), side.client()
        lock = holder.lock("a", ttl=TTL)
        held = await side.get(lock.acquire())
        both = side.all_of(waiter.lock("b", ttl=TTL), waiter.lock("a", ttl=TTL))
        assert await side.get(both.try_acquire()) is None  # connected from here on
        waiter.session.keeper.listen(5)
        side.trips()
        started = side.start(both.acquire)
        seen = 1
        while not (await side.get(lock.status())).waiting:
            seen += 1
        assert side.trips() == 3 + seen, "a try of both, what was granted given back, a place"
        await side.get(held.release())
        leases = await side.end(started)
        assert side.trips() == 2, "the release, and the try of the other"
        await side.get(leases.release())
        assert side.trips() == 1

    side.run(case())
