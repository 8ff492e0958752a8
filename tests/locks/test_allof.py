"""Several leases, all or nothing: what is granted, in how many round trips, how it waits, and losses."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import (
    AcquireTimeout,
    AllOf,
    CapacityWarning,
    Client,
    Forbidden,
    LeaseLost,
    MissingCapability,
    NotHeld,
    Reentrant,
)
from dibs.errors import UnsafeTiming
from dibs.model import Acquire, Command, Failed, Reply
from dibs.session import StoreSession
from tests.changed_store import ChangedStore
from tests.locks.waits import Holder, cancelling, time_passes, until
from tests.locks.worlds import World, in_both_worlds, is_free, site
from tests.runtime.stores import TappedStore
from tests.stores.round_trips import Counter, Mode, Side, counter_of


def names(leases: Any) -> list[bytes]:
    return [lease.key for lease in leases]


async def waiting(w: World, lock: Any) -> bool:
    return bool((await w.get(lock.status())).waiting)


async def later(w: World, seconds: float) -> None:
    """Let time pass, and what is due be done."""
    w.clock.advance(seconds)
    await w.turn()
    if not w.is_async:
        time.sleep(0.03)  # threads have to get their turn, and nothing shows that they had it


async def free(w: World, *locks: Any) -> list[bool]:
    """Which of these another client could have at once."""
    return [await is_free(w, w.another().lock(lock.name)) for lock in locks]


# -- what is granted --------------------------------------------------------------------------------


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
async def test_what_is_named_twice_alike_is_one_lease(w: World) -> None:
    c, all_of = w.client, w.module.AllOf
    pairs: list[Any] = [
        (c.lock("a", wait=3), c.lock("a", wait=4)),
        (c.rwlock("r").read(), c.rwlock("r").read()),
        ((c.semaphore("s", 3), 2), (c.semaphore("s", 3), 2)),
        (c.semaphore("s", 3), (c.semaphore("s", 3), 1)),
    ]
    for pair in pairs:
        leases = await w.get(all_of(pair[0], c.lock("b"), pair[1]).acquire())
        assert leases[0] is leases[2]
        assert leases[0] is not leases[1]
        assert await w.get(leases.release())
    same = await w.get(all_of(c.lock("a", ttl=3), c.lock("a", ttl=4), ttl=5).acquire())
    assert same[0].ttl == 5
    await w.get(same.release())


@in_both_worlds
async def test_the_members_of_another_one_are_members(w: World) -> None:
    c, all_of = w.client, w.module.AllOf
    inner = all_of(c.lock("c"), c.lock("a"), ttl=10)
    leases = await w.get(all_of(c.lock("b"), inner).acquire())
    assert names(leases) == [b"lock:b", b"lock:c", b"lock:a"]
    assert [lease.ttl for lease in leases] == [30, 10, 10]
    await w.get(leases.release())


@in_both_worlds
async def test_it_waits_as_long_as_the_shortest_wait_among_its_members(w: World) -> None:
    c, all_of = w.client, w.module.AllOf
    held = await w.get(w.another().lock("a").acquire())
    for both in (
        all_of(c.lock("b"), c.lock("a", wait=0)),
        all_of(c.lock("b", wait=9), c.lock("a"), wait=0),
        all_of(c.lock("b"), all_of(c.lock("a"), wait=0)),
    ):
        with pytest.raises(AcquireTimeout):
            await w.get(both.acquire())
    await w.get(held.release())


@in_both_worlds
async def test_on_wait_of_a_member_is_called_for_its_own_keys(w: World) -> None:
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
        holder = Holder(w, both)
        await until(w, lambda key=key: waiting(w, others.lock(key)))  # type: ignore[misc]
        await until(w, lambda expected=expected: len(told) >= len(expected))  # type: ignore[misc]
        await w.get(held.release())
        await holder.holds()
        await holder.lets_go()
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


@in_both_worlds
async def test_notes_and_priorities_are_for_all_of_them(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a", note="mine"), c.lock("b"))
    leases = await w.get(both.acquire(note="move", priority=3))
    for name in "ab":
        (holder,) = (await w.get(c.status(name))).holders
        assert holder.note == "move"
    await w.get(leases.release())


# -- how it waits -----------------------------------------------------------------------------------


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


@in_both_worlds
async def test_it_waits_for_one_key_at_a_time_and_holds_those_before(w: World) -> None:
    c, others = w.client, w.another()
    held = {name: await w.get(others.lock(name).acquire()) for name in "bd"}
    holder = Holder(w, w.module.AllOf(*(c.lock(name) for name in "edcba")))
    await until(w, lambda: waiting(w, others.lock("b")))
    assert await free(w, *(others.lock(name) for name in "ace")) == [False, True, True]
    assert not await waiting(w, others.lock("d")), "it is queued at one key only"
    await w.get(held["b"].release())
    await until(w, lambda: waiting(w, others.lock("d")))
    assert await free(w, *(others.lock(name) for name in "abce")) == [False, False, False, True]
    await w.get(held["d"].release())
    leases = await holder.holds()
    assert names(leases) == [b"lock:e", b"lock:d", b"lock:c", b"lock:b", b"lock:a"]
    await holder.lets_go()
    assert await free(w, *(others.lock(name) for name in "abcde")) == [True] * 5


@in_both_worlds
async def test_a_time_out_names_who_is_in_the_way_and_keeps_nothing(w: World) -> None:
    """The time is for all of them together."""
    c, others = w.client, w.another()
    first = await w.get(others.lock("a").acquire())
    held = await w.get(others.lock("b", label="web").acquire())
    holder = Holder(w, w.module.AllOf(c.lock("a"), c.lock("b"), wait=7))
    await until(w, lambda: waiting(w, others.lock("a")))
    await later(w, 4)
    await w.get(first.release())
    await until(w, lambda: waiting(w, others.lock("b")))
    await later(w, 3.1)
    error = await holder.beside.error()
    assert isinstance(error, AcquireTimeout)
    assert str(error).startswith("b is held by ")
    assert "gave up on all 2 after 7 s" in str(error)
    assert [holder.token for holder in error.holders] == [held.token]
    assert error.key == b"lock:b"
    assert not await waiting(w, others.lock("b"))
    assert await free(w, others.lock("a")) == [True]
    await w.get(held.release())


@in_both_worlds
async def test_time_limits_count_from_when_all_are_there(w: World) -> None:
    """While it waits, what it holds is renewed, also leases that would not be."""
    c, others = w.client, w.another()
    held = await w.get(others.lock("b", ttl=600).acquire())
    unrenewed = c.lock("a", auto_renew=False)
    holder = Holder(w, w.module.AllOf(unrenewed, c.lock("aa", max_hold=60), c.lock("b")))
    await until(w, lambda: waiting(w, others.lock("b")))
    for _ in range(14):
        await later(w, 5)
    assert await free(w, unrenewed) == [False]
    await w.get(held.release())
    await time_passes(w, lambda: holder.settled, step=0.01)
    leases = await holder.holds()
    assert leases[0].remaining == pytest.approx(26.7, abs=0.5), "a ttl less the margin"
    await later(w, 27)
    assert leases[0].reason == leases.reason == "expired"
    assert not leases[1].lost
    for _ in range(4):
        await later(w, 10)
    assert leases[1].reason == "max_hold"
    assert not leases[2].lost
    await holder.lets_go()


@in_both_worlds
async def test_what_is_lost_while_it_waits_is_acquired_anew(w: World) -> None:
    c, others = w.client, w.another()
    told: list[Any] = []
    held = await w.get(others.lock("c").acquire())
    three = w.module.AllOf(c.lock("a"), c.lock("b", on_lost=told.append), c.lock("c"))
    holder = Holder(w, three)
    await until(w, lambda: waiting(w, others.lock("c")))
    before = (await w.get(others.status("b"))).holders[0].token
    assert await w.get(others.revoke("b", reason="a test", now=True)) == 1
    thief = await w.get(others.lock("b").acquire())
    await later(w, 11)  # a renewal was due, and found the loss
    await w.get(held.release())
    await time_passes(w, lambda: waiting(w, others.lock("b")), step=0.01)
    assert await free(w, others.lock("c")) == [True], "not kept while it waits for an earlier one"
    await w.get(thief.release())
    leases = await holder.holds()
    leases.ensure()
    assert leases[1].token > thief.token > before
    assert told == [], "its holder never had it"
    await holder.lets_go()


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


@in_both_worlds
async def test_a_reentrant_member_is_held_once_more(w: World) -> None:
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
    held = await w.get(w.another().lock("a").acquire())
    outer = await w.get(lock.acquire())
    assert await w.get(both.try_acquire()) is None
    assert await w.get(outer.release())
    assert await free(w, client.lock("b")) == [True], "what was taken again is given back"
    await w.get(held.release())


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


# -- losses -----------------------------------------------------------------------------------------


async def test_several_losses_are_one_interruption(client: Client) -> None:
    with pytest.raises(LeaseLost, match="lease on a") as caught:
        async with AllOf(client.lock("a"), client.lock("b")) as leases:
            await client.revoke("b", reason="a test")
            await client.revoke("a", reason="a test")
            try:
                await asyncio.sleep(3600)
            finally:
                while not all(lease.lost for lease in leases):
                    await asyncio.sleep(0)
    (note,) = caught.value.__notes__
    assert note.startswith("the lease on b ")
    assert cancelling() == 0


@in_both_worlds
async def test_wait_lost_ends_with_the_first_loss_but_not_with_a_release(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a"), c.lock("b", auto_renew=False))
    leases = await w.enter(both)
    assert await w.get(leases.wait_lost(0)) is False
    assert await w.get(leases[0].release())
    assert not leases.lost
    assert await w.get(leases.wait_lost(0)) is False
    w.clock.advance(27)
    assert await w.get(leases.wait_lost()) is True
    assert (leases.lost, leases.reason) == (True, "expired")
    with pytest.raises(LeaseLost, match="lease on b"):
        await w.leave(both)
    w.clock.advance(4)
    again = await w.get(both.acquire())
    await w.get(again.release())
    assert await w.get(again.wait_lost()) is False
    await w.turn()


@in_both_worlds
async def test_a_block_is_not_begun_with_one_that_is_lost(w: World) -> None:
    c = w.client
    leases = await w.get(w.module.AllOf(c.lock("a", auto_renew=False), c.lock("b")).acquire())
    w.clock.advance(27)
    with pytest.raises(LeaseLost, match="lease on a"):
        leases.ensure()
    with pytest.raises(LeaseLost, match="lease on a"):
        await w.enter(leases)
    c.session.keeper.flush(10)
    assert not await w.get(c.lock("b").locked()), "the other is given up"
    await w.turn()
    assert not w.is_async or cancelling() == 0


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


# -- arguments --------------------------------------------------------------------------------------


REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda c: (), ValueError, "AllOf is given nothing: name what is to be held"),
    (lambda c: ("a",), TypeError, r"can't hold 'a': give locks, semaphores"),
    (lambda c: (c.lock("a"), None), TypeError, "can't hold None: give locks"),
    (lambda c: (c.rwlock("r"),), TypeError, r"say what for: lock.read\(\) or lock.write\(\)"),
    (lambda c: (c.task_lock("t", 1, 2),), TypeError, "a TaskLock never waits, and stays closed"),
    (lambda c: (c.leader_election("l"),), TypeError, "a LeaderElection is won once"),
    (lambda c: (dibs.sync.Lock("a"),), TypeError, "it is made for threads: take it from dibs, as"),
    (lambda c: (dibs.sync.AllOf(dibs.sync.Lock("a")),), TypeError, "it is made for threads"),
    (lambda c: (dibs.sync.RWLock("r").read(),), TypeError, "it is made for threads"),
    (lambda c: ((c.semaphore("s", 2), 3),), ValueError, "semaphore s has a capacity of 2"),
    (lambda c: ((c.semaphore("s", 2), 0),), ValueError, "semaphore s has a capacity of 2"),
    (lambda c: ((c.lock("a"), 2),), ValueError, "a has a capacity of 1"),
    (lambda c: ((c.semaphore("s", 2), "2"),), TypeError, "the second is a number of units"),
    (lambda c: ((c.semaphore("s", 2), True),), TypeError, "the second is a number of units"),
    (lambda c: ((c.rwlock("r").read(), 2),), ValueError, "a reader takes one, a writer all"),
    (lambda c: ((c.semaphore("s", 2), 1, 1),), TypeError, "give locks, semaphores, pairs"),
    (lambda c: (c.rwlock("r").read(), c.rwlock("r").write()), ValueError, "for reading and for"),
    (lambda c: ((c.semaphore("s", 3), 2), c.semaphore("s", 3)), ValueError, "for 2 and for 1 uni"),
    (lambda c: (c.semaphore("s", 3), c.semaphore("s", 4)), ValueError, "with another capacity"),
    (lambda c: (c.lock("a", ttl=9), c.lock("a", note="b")), ValueError, "another ttl and note"),
    (lambda c: (c.lock("a", on_lost=print), c.lock("a")), ValueError, "with another on_lost"),
]


@pytest.mark.parametrize(("members", "kind", "told"), REFUSED)
def test_members_that_make_no_sense_are_refused(
    members: Callable[[Any], Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        AllOf(*members(dibs.connect("memory://allof")))


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_options_are_checked_at_once(module: Any) -> None:
    lock, other = module.Lock("a"), (dibs if module is dibs.sync else dibs.sync).Lock("a")
    for wrong, kind, told in (
        ({"timeout": 3}, TypeError, "did you mean wait="),
        ({"wait": -1}, ValueError, "negative"),
        ({"ttl": 0.01}, UnsafeTiming, "ttl is 0.01 s"),
        ({"ttl": True}, TypeError, "ttl is True"),
        ({"on_wait": 3}, TypeError, "on_wait is 3"),
    ):
        with pytest.raises(kind, match=told):
            module.AllOf(lock, **wrong)
    with pytest.raises(TypeError, match=rf"take it from {module.__name__}, as this AllOf is"):
        module.AllOf(other)
    with pytest.raises(TypeError, match="write wait="):
        module.AllOf(lock).acquire(timeout=3)
    with pytest.raises(TypeError, match="release the leases"):
        module.AllOf(lock).release()
    assert repr(module.AllOf(lock, module.Semaphore("s", 2))) == "<AllOf a, semaphore s>"


async def test_the_other_sides_with_is_refused() -> None:
    with pytest.raises(TypeError, match=r"AllOf of dibs is for asyncio: write `async with`"):
        with AllOf(dibs.Lock("a")):  # type: ignore[attr-defined]
            pass
    blocking = dibs.sync.AllOf(dibs.sync.Lock("a"))
    with pytest.raises(TypeError, match=r"AllOf of dibs\.sync blocks: write `with`"):
        async with blocking:  # type: ignore[attr-defined]
            pass
    for call in (blocking.acquire, blocking.try_acquire):
        with pytest.raises(RuntimeError, match="a blocking AllOf inside a running event loop"):
            call()
    with pytest.raises(TypeError, match="a coroutine function"):
        dibs.sync.AllOf(dibs.sync.Lock("a"), on_wait=asyncio.sleep)  # type: ignore[arg-type]


@in_both_worlds
async def test_all_must_be_of_one_client_and_promise_what_each_requires(w: World) -> None:
    c, other = w.client, w.another()
    with pytest.raises(ValueError, match="a, b are not all of one client"):
        await w.get(w.module.AllOf(c.lock("a"), other.lock("b")).acquire())
    with_default = w.module.AllOf(c.lock("a"), w.module.Lock("b"))
    demanding = w.module.AllOf(c.lock("a"), w.module.Lock("b", require={"durable"}))
    with dibs.override(c):
        await w.get((await w.get(with_default.acquire())).release())
        with pytest.raises(MissingCapability, match="the store can't promise durable"):
            await w.get(demanding.acquire())
    with dibs.override(other), pytest.raises(ValueError, match="are not all of one client"):
        await w.get(with_default.acquire())
    assert await free(w, c.lock("a")) == [True], "refused before anything is acquired"


@in_both_worlds
async def test_another_capacity_is_warned_of(w: World) -> None:
    c = w.client
    held = await w.get(w.another().semaphore("s", 4).acquire(units=4))
    both = w.module.AllOf(c.lock("a"), c.semaphore("s", 2))
    with pytest.warns(CapacityWarning, match="slot 3 is held"):
        assert await w.get(both.try_acquire()) is None
    await w.get(held.release())
