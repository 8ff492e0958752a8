"""Several leases, all or nothing: what is granted, in how many batches, how it waits, and losses.

In a loop: threads step the same coroutines.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import (
    AcquireTimeout,
    AllOf,
    Client,
    Forbidden,
    LeaseLost,
    Leases,
    MissingCapability,
    NotHeld,
    Reentrant,
)
from dibs.model import Acquire, Command, Failed, Reply
from dibs.session import StoreSession
from tests.changed_store import ChangedStore
from tests.locks.waits import Holder, cancelling, time_passes, until_queued
from tests.locks.worlds import World, site
from tests.runtime.stores import TappedStore


def keys(leases: Leases) -> list[str]:
    return [lease.key.decode() for lease in leases]


async def free(client: Client, names: str) -> str:
    """Those of these locks that the client could have at once."""
    found = ""
    for name in names:
        lease = await client.lock(name).try_acquire()
        if lease is not None:
            await lease.release()
            found += name
    return found


async def test_what_is_named_twice_alike_is_one_lease(client: Client) -> None:
    pairs: list[Any] = [
        (client.lock("a", wait=3), client.lock("a", wait=4)),
        (client.rwlock("r").read(), client.rwlock("r").read()),
        (client.semaphore("s", 3), (client.semaphore("s", 3), 1)),
    ]
    for one, same in pairs:
        async with AllOf(one, client.lock("b"), same) as leases:
            assert leases[0] is leases[2]
            assert leases[0] is not leases[1]
    async with AllOf(client.lock("a", ttl=3), client.lock("a", ttl=4), ttl=5) as leases:
        assert leases[0].ttl == 5


async def test_the_members_of_another_one_are_members(client: Client) -> None:
    inner = AllOf(client.lock("c"), client.lock("a"), ttl=10)
    leases = await AllOf(client.lock("b"), inner).acquire(note="move")
    assert keys(leases) == ["lock:b", "lock:c", "lock:a"]
    assert [lease.ttl for lease in leases] == [30, 10, 10]
    assert (await client.status("a")).holders[0].note == "move"
    assert leases.remaining == min(lease.remaining for lease in leases) < 10
    with pytest.raises(LeaseLost, match=r"lease on c has 9 s left"):
        leases.ensure("10s")
    assert [await leases.release(), await leases.release()] == [True, False]
    with pytest.raises(NotHeld, match="b was released"):
        leases.ensure()


async def test_its_wait_is_the_shortest_of_its_members(client: Client, others: Client) -> None:
    async with others.lock("a"):
        for both in (
            AllOf(client.lock("b"), client.lock("a", wait=0)),
            AllOf(client.lock("b", wait=9), client.lock("a"), wait=0),
            AllOf(client.lock("b"), AllOf(client.lock("a"), wait=0)),
        ):
            with pytest.raises(AcquireTimeout):
                await both.acquire()


async def test_on_wait_of_a_member_is_called_for_its_own_keys(
    w: World, client: Client, others: Client
) -> None:
    told: set[str] = set()

    def teller(name: str) -> Any:
        return lambda wait: told.add(f"{name}: {wait.key.decode()}")

    a, b, x = client.lock("a"), client.lock("b", on_wait=teller("b")), client.lock("x")
    inner = AllOf(a, b, on_wait=teller("inner"))
    for both, name, expected in (
        (AllOf(a, inner, x), "a", {"inner: lock:a"}),
        (AllOf(inner, x), "x", set()),
        (AllOf(inner, x, on_wait=teller("outer")), "a", {"outer: lock:a"}),
        (AllOf(x, b), "b", {"b: lock:b"}),
    ):
        async with others.lock(name):
            acquiring = asyncio.ensure_future(both.acquire())
            await until_queued(w, name)
        await (await acquiring).release()
        assert told == expected
        told.clear()


def sent(store: TappedStore) -> list[list[str]]:
    """What travelled together since the last time, as the names of the commands."""
    found = [[type(command).__name__ for command in batch] for batch in store.batches]
    store.batches.clear()
    return found


async def test_a_refused_try_is_one_round_trip_and_one_to_undo_it(w: World, others: Client) -> None:
    store, client = site(w)
    three = AllOf(*(client.lock(name) for name in "cab"))
    async with others.lock("b") as held:
        assert await three.try_acquire() is None
        commands = [command for batch in store.batches for command in batch]
        assert not any(isinstance(command, Acquire) and command.queue for command in commands)
        assert sent(store) == [["Acquire"] * 3, ["Release"] * 2]
        with pytest.raises(AcquireTimeout, match="b is held by") as refusal:
            await three.acquire(wait=0)
        assert refusal.value.key == b"lock:b"
        assert [holder.token for holder in refusal.value.holders] == [held.token]
        assert await free(others, "ac") == "ac"


async def test_it_waits_for_one_key_at_a_time_and_holds_those_before(
    w: World, client: Client, others: Client
) -> None:
    held = {name: await others.lock(name).acquire() for name in "bd"}
    acquiring = asyncio.ensure_future(AllOf(*(client.lock(name) for name in "edcba")).acquire())
    await until_queued(w, "b")
    assert await free(others, "ace") == "ce"
    assert not (await others.status("d")).waiting, "it is queued at one key only"
    await held["b"].release()
    await until_queued(w, "d")
    assert await free(others, "abce") == "e"
    await held["d"].release()
    leases = await acquiring
    assert keys(leases) == ["lock:e", "lock:d", "lock:c", "lock:b", "lock:a"]
    await leases.release()
    assert await free(others, "abcde") == "abcde"


async def test_a_time_out_names_who_is_in_the_way_and_keeps_nothing(
    w: World, client: Client, others: Client
) -> None:
    """The time is for all of them together."""
    first = await others.lock("a").acquire()
    held = await others.lock("b", label="web").acquire()
    acquiring = asyncio.ensure_future(AllOf(client.lock("a"), client.lock("b"), wait=7).acquire())
    await until_queued(w, "a")
    w.clock.advance(4)
    await first.release()
    await until_queued(w, "b")
    w.clock.advance(3.1)
    with pytest.raises(AcquireTimeout, match=r"^b is held by .*gave up on all 2 after 7 s") as told:
        await acquiring
    assert [holder.token for holder in told.value.holders] == [held.token]
    assert told.value.key == b"lock:b"
    assert not (await others.status("b")).waiting
    assert await free(others, "a") == "a"
    await held.release()


async def test_time_limits_count_from_when_all_are_there(
    w: World, client: Client, others: Client
) -> None:
    """While it waits, what it holds is renewed, also leases that would not be."""
    held = await others.lock("b", ttl=600).acquire()
    three = AllOf(
        client.lock("a", auto_renew=False), client.lock("aa", max_hold=60), client.lock("b")
    )
    holder = Holder(w, three)
    await until_queued(w, "b")
    for _ in range(14):
        w.clock.advance(5)
        await w.turn()
    assert await free(others, "a") == ""
    await held.release()
    await time_passes(w, lambda: holder.settled, step=0.01)
    leases = await holder.holds()
    assert leases[0].remaining == pytest.approx(26.7, abs=0.5), "a ttl less the margin"
    w.clock.advance(27)
    assert leases[0].reason == leases.reason == "expired"
    assert not leases[1].lost
    w.clock.advance(40)
    assert leases[1].reason == "max_hold"
    assert not leases[2].lost
    await holder.lets_go()


async def test_a_member_that_is_held_already_is_refused_or_held_once_more(
    w: World, others: Client
) -> None:
    store, client = site(w)
    async with client.lock("b"):
        plain = AllOf(client.lock("a"), client.lock("b"))
        sent(store)
        with pytest.raises(Reentrant, match="b is already held"):
            await plain.acquire()
        assert await plain.try_acquire() is None
        assert sent(store) == [], "it is refused before anything is acquired"
    lock = client.lock("b", reentrant=True)
    both = AllOf(client.lock("a"), lock)
    outer = await lock.acquire()
    sent(store)
    leases = await both.acquire()
    assert sent(store) == [["Acquire"]]
    assert leases[1].token == outer.token
    assert await outer.release()
    leases.ensure()
    async with lock as inner:
        assert await leases.release() is True
        inner.ensure()
        assert await free(others, "ab") == "a"
    async with others.lock("a"), lock:
        assert await both.try_acquire() is None
    assert await free(others, "b") == "b", "what was taken again is given back"


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


async def test_wait_lost_ends_with_the_first_loss_but_not_with_a_release(
    w: World, client: Client
) -> None:
    both = AllOf(client.lock("a"), client.lock("b", auto_renew=False))
    leases = await both.acquire()
    assert await leases[0].release()
    assert not leases.lost
    assert await leases.wait_lost(0) is False
    w.clock.advance(27)
    assert await leases.wait_lost() is True
    assert (leases.lost, leases.reason) == (True, "expired")
    w.clock.advance(4)
    again = await both.acquire()
    await again.release()
    assert await again.wait_lost() is False


async def test_a_block_is_not_begun_with_one_that_is_lost(w: World, client: Client) -> None:
    leases = await AllOf(client.lock("a", auto_renew=False), client.lock("b")).acquire()
    w.clock.advance(27)
    with pytest.raises(LeaseLost, match="lease on a"):
        async with leases:
            pytest.fail("one is lost")
    assert client.session.keeper.flush(10)
    assert not await client.lock("b").locked(), "the other is given up"
    await w.turn()
    assert cancelling() == 0


class ForbiddingStore(ChangedStore):
    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        refused = Failed("forbidden", "no rights on this key")
        return [
            refused if isinstance(command, Acquire) and command.key == b"lock:b" else reply
            for command, reply in zip(commands, replies, strict=True)
        ]


async def test_an_error_of_one_is_raised_and_the_others_given_up(w: World, others: Client) -> None:
    client = Client(StoreSession(ForbiddingStore(TappedStore(store=w.store, turns=1))))
    three = AllOf(*(client.lock(name) for name in "abc"))
    for acquire in (three.acquire, three.try_acquire):
        with pytest.raises(Forbidden, match="b: no rights on this key"):
            await acquire()
    assert client.session.keeper.flush(10)
    assert await free(others, "ac") == "ac"
    await client.close()


REFUSED: list[tuple[Callable[[Client], tuple[Any, ...]], type[Exception], str]] = [
    (lambda c: (), ValueError, "AllOf is given nothing: name what is to be held"),
    (lambda c: (c.lock("a"), None), TypeError, "can't hold None: give locks, semaphores"),
    (lambda c: (c.rwlock("r"),), TypeError, r"say what for: lock.read\(\) or lock.write\(\)"),
    (lambda c: (c.task_lock("t", 1, 2),), TypeError, "a TaskLock never waits, and stays closed"),
    (lambda c: (c.leader_election("l"),), TypeError, "a LeaderElection is won once"),
    (lambda c: (dibs.sync.Lock("a"),), TypeError, "it is made for threads: take it from dibs, as"),
    (lambda c: ((c.semaphore("s", 2), 3),), ValueError, "semaphore s has a capacity of 2"),
    (lambda c: ((c.semaphore("s", 2), True),), TypeError, "the second is a number of units"),
    (lambda c: ((c.rwlock("r").read(), 2),), ValueError, "a reader takes one, a writer all"),
    (lambda c: (c.rwlock("r").read(), c.rwlock("r").write()), ValueError, "for reading and for"),
    (lambda c: ((c.semaphore("s", 3), 2), c.semaphore("s", 3)), ValueError, "for 2 and for 1 uni"),
    (lambda c: (c.semaphore("s", 3), c.semaphore("s", 4)), ValueError, "with another capacity"),
    (lambda c: (c.lock("a", ttl=9), c.lock("a", note="b")), ValueError, "another ttl and note"),
]


@pytest.mark.parametrize(("members", "kind", "told"), REFUSED)
def test_members_that_make_no_sense_are_refused(
    client: Client, members: Callable[[Client], tuple[Any, ...]], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        AllOf(*members(client))


async def test_all_must_be_of_one_client_and_promise_what_each_requires(
    client: Client, others: Client
) -> None:
    with pytest.raises(ValueError, match="a, b are not all of one client"):
        await AllOf(client.lock("a"), others.lock("b")).acquire()
    with_default = AllOf(client.lock("a"), dibs.Lock("b"))
    demanding = AllOf(client.lock("a"), dibs.Lock("b", require={"durable"}))
    with dibs.override(client):
        await (await with_default.acquire()).release()
        with pytest.raises(MissingCapability, match="the store can't promise durable"):
            await demanding.acquire()
    with dibs.override(others), pytest.raises(ValueError, match="are not all of one client"):
        await with_default.acquire()
    assert await free(others, "a") == "a", "refused before anything is acquired"
