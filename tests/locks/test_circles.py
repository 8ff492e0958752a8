"""Who waits for each other is told: the right one, and all of it."""

import asyncio
import pickle
import random
from typing import Any

import pytest

from dibs import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.core.names import fingerprint, wait_key
from dibs.locks.deadlock import DeadlockDetector
from dibs.model import Inspect, Status
from tests.locks.circles import Crosser, all_done, ask, nothing_left, outcomes, ring
from tests.locks.test_queue import FullStore
from tests.locks.waits import pause, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


@in_both_worlds
async def test_of_two_processes_the_one_that_began_last_gives_way(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.lock("a", label="one"), one.lock("b", label="one")),
        (two.lock("b", label="two"), two.lock("a", label="two")),
    )
    assert await time_passes(w, all_done(crossers)) < 4
    assert await outcomes(crossers) == [None, Deadlock]
    error = await crossers[1].beside.error()
    assert isinstance(error, Deadlock)
    told = str(error)
    assert "/two holds b and waits for a; " in told
    assert "/one holds a and waits for b: none of these waits can end" in told
    assert error.key == b"lock:a"
    assert crossers[1].left
    assert {holder.token for holder in error.holders} == {each.held.token for each in crossers}
    assert str(pickle.loads(pickle.dumps(error))) == told
    await nothing_left(w, *crossers)
    assert (await w.get(w.client.status("a"))).waiting == 0


@in_both_worlds
async def test_of_two_tasks_or_threads_of_one_client(w: World) -> None:
    c = w.client
    crossers = await ring(w, (c.lock("a"), c.lock("b")), (c.lock("b"), c.lock("a")))
    names = [getattr(me, "name", None) or me.get_name() for me in (c.held._me for c in crossers)]
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    told = str(await crossers[1].beside.error())
    assert f" ({names[1]}) holds b and waits for a; " in told
    assert f" ({names[0]}) holds a and waits for b: " in told
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_a_longer_circle_is_named_in_full(w: World) -> None:
    names = "abcde"
    clients = [w.another() for _ in names]
    pairs = [
        (client.lock(mine, label=f"p{mine}"), client.lock(theirs, label=f"p{mine}"))
        for client, mine, theirs in zip(clients, names, names[1:] + names[0], strict=True)
    ]
    crossers = await ring(w, *pairs)
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None] * 4 + [Deadlock]
    told = str(await crossers[-1].beside.error())
    assert [told.index(f"/p{name} holds {name} and waits") for name in "eabcd"] == sorted(
        told.index(f"/p{name} holds {name} and waits") for name in names
    )
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_readers_and_writers_can_be_in_one(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.rwlock("r").read(), one.rwlock("q").write()),
        (two.rwlock("q").read(), two.rwlock("r").write()),
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    assert "holds rwlock q and waits for rwlock r" in str(await crossers[1].beside.error())


@in_both_worlds
async def test_several_readers_are_each_followed(w: World) -> None:
    """A writer waits for two readers, and only the second of them waits for it."""
    bystander = await w.get(w.another().rwlock("r").read().acquire())
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.rwlock("r").read(), one.lock("a")),
        (two.lock("a"), two.rwlock("r").write()),
    )
    await time_passes(w, lambda: crossers[1].done)
    assert isinstance(await crossers[1].beside.error(), Deadlock)
    await crossers[0].beside.result()
    await w.get(bystander.release())


@in_both_worlds
async def test_two_circles_are_each_opened_once(w: World) -> None:
    clients = [w.another() for _ in range(4)]
    locks = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    crossers = await ring(
        w, *((c.lock(x), c.lock(y)) for c, (x, y) in zip(clients, locks, strict=True))
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock, None, Deadlock]


async def knot(w: World, order: str) -> dict[str, Any]:
    """`t` waits for two readers, `p` and `q`, and each of them waits for it; how each ended."""
    clients = {name: w.another() for name in order}
    pairs = {
        name: (c.lock("a"), c.rwlock("r").write())
        if name == "t"
        else (c.rwlock("r").read(), c.lock("a"))
        for name, c in clients.items()
    }
    crossers = [Crosser(w, *pairs[name]) for name in order]
    for each in crossers:
        await until(w, lambda each=each: each.held is not None)  # type: ignore[misc]
    queued = {"a": 0, "r": 0}
    for name, each in zip(order, crossers, strict=True):
        each.may_go = True
        key = "r" if name == "t" else "a"
        queued[key] += 1
        await until_queued(w, key, queued[key], "rwlock" if name == "t" else "lock")
        w.clock.advance(0.1)
    await time_passes(w, all_done(crossers))
    found = dict(zip(order, await outcomes(crossers), strict=True))
    await nothing_left(w, *crossers)
    return found


@in_both_worlds
async def test_the_youngest_of_two_circles_through_one_task_opens_both(w: World) -> None:
    assert await knot(w, "pqt") == {"p": None, "q": None, "t": Deadlock}


@in_both_worlds
async def test_two_circles_that_only_the_oldest_has_in_common_are_each_opened(w: World) -> None:
    assert await knot(w, "tpq") == {"t": None, "p": Deadlock, "q": Deadlock}


@in_both_worlds
async def test_whoever_is_not_the_youngest_of_one_circle_gives_way_in_the_other(w: World) -> None:
    found = await knot(w, "ptq")  # `q` may or may not have to, as that depends on who looks first
    assert (found["p"], found["t"]) == (None, Deadlock)


async def test_whoever_waited_for_a_place_in_the_queue_has_waited_since_then() -> None:
    w = World("async")
    store = FullStore(w)
    one, two = w.another(store), w.another()
    older = Crosser(w, one.lock("b", ttl=60), one.lock("a", ttl=60))
    younger = Crosser(w, two.lock("a", ttl=60), two.lock("b", ttl=60))
    await until(w, lambda: older.held is not None and younger.held is not None)
    older.may_go = True
    await until(w, lambda: store.refused > 0)
    w.clock.advance(0.5)
    younger.may_go = True
    await until_queued(w, "b", 1)
    w.clock.advance(0.25)
    store.full = False
    await time_passes(w, all_done([older, younger]))
    assert await outcomes([older, younger]) == [None, Deadlock]


@in_both_worlds
async def test_who_gives_way_can_begin_again(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))
    await time_passes(w, all_done(crossers))
    again = Crosser(w, two.lock("b"), two.lock("a"))
    again.may_go = True
    await time_passes(w, lambda: again.done)
    await again.beside.result()


@in_both_worlds
async def test_a_chain_is_no_circle(w: World) -> None:
    one, two = w.client, w.another()
    end = await w.get(w.another().lock("c").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("c")))
    for _ in range(60):
        w.clock.advance(0.5)
        await pause(w)
    assert not any(each.done for each in crossers)
    await w.get(end.release())
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, None]
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_it_can_be_switched_off(w: World) -> None:
    one, two = w.client, w.another()
    off = {"detect_deadlocks": False}
    crossers = await ring(
        w,
        (one.lock("a"), one.lock("b", **off)),
        (two.lock("b"), two.lock("a", **off)),
        wait=8,
    )
    await time_passes(w, all_done(crossers))
    assert AcquireTimeout in await outcomes(crossers)
    assert Deadlock not in await outcomes(crossers)


@in_both_worlds
async def test_a_time_out_withdraws_what_was_told(w: World) -> None:
    one = w.client
    end = await w.get(w.another().lock("b").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")), wait=6)
    advert = wait_key(fingerprint(crossers[0].held._id))
    seen = 0
    while not crossers[0].done:
        w.clock.advance(0.25)
        await pause(w)
        seen += len((await ask(w.client, Inspect(advert))).holders)
    assert seen, "it was told while it waited"
    assert await outcomes(crossers) == [AcquireTimeout]
    await nothing_left(w, *crossers)
    await w.get(end.release())


@in_both_worlds
async def test_no_list_shows_what_is_told(w: World) -> None:
    one = w.client
    end = await w.get(w.another().lock("b").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")))
    advert = wait_key(fingerprint(crossers[0].held._id))
    while not (await ask(w.client, Inspect(advert))).holders:
        w.clock.advance(0.25)
        await pause(w)
    listed = one.list()
    found = [each async for each in listed] if w.is_async else list(listed)
    assert sorted(each.key for each in found) == [b"lock:a", b"lock:b"]
    await w.get(end.release())
    await crossers[0].beside.result()


async def test_a_cancelled_wait_withdraws_what_was_told() -> None:
    w = World("async")
    end = await w.another().lock("b").acquire()
    crossers = await ring(w, (w.client.lock("a"), w.client.lock("b")))
    for _ in range(8):
        w.clock.advance(0.25)
        await pause(w)
    task = crossers[0].beside._task
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(w, *crossers)
    await end.release()


async def test_nobody_who_waits_briefly_or_holds_nothing_asks_anything_more() -> None:
    w = World("async")
    store = TappedStore(store=w.store)
    client = w.another(store)
    ends = [await w.another().lock(name, ttl=600).acquire() for name in "bc"]
    idle = asyncio.create_task(client.lock("c", ttl=600).acquire())
    crossers = await ring(w, (client.lock("a", ttl=600), client.lock("b", ttl=600)))
    w.clock.advance(0.8)
    for _ in range(20):
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    assert not any(isinstance(each, Inspect) for each in sent)
    await ends[0].release()
    await crossers[0].beside.result()
    for _ in range(40):
        w.clock.advance(0.5)
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    await ends[1].release()
    await (await idle).release()


async def test_a_store_that_is_away_while_it_looks_ends_no_wait() -> None:
    w = World("async")
    store = TappedStore(store=w.store)
    client = w.another(store)
    failed = 0

    def fail(commands: Any) -> None:
        nonlocal failed
        if any(command.key.startswith(b"wait:") for command in commands):
            failed += 1
            raise BackendUnavailable("planted")

    store.before = fail
    end = await w.another().lock("b").acquire()
    crossers = await ring(w, (client.lock("a"), client.lock("b")))
    for _ in range(30):
        w.clock.advance(0.5)
        await pause(w)
    assert failed >= 3
    assert not crossers[0].done
    await end.release()
    await crossers[0].beside.result()


async def test_many_who_take_two_in_the_same_order_are_never_told_of_a_circle() -> None:
    w = World("async")
    clients = [w.another() for _ in range(6)]
    names, chance = "abcdef", random.Random(4)
    store_reads = 0
    original = DeadlockDetector._read

    async def counting(self: DeadlockDetector, key: bytes) -> Status:
        nonlocal store_reads
        store_reads += 1
        return await original(self, key)

    async def work(number: int) -> None:
        client = clients[number % len(clients)]
        for _ in range(3):
            first, second = sorted(chance.sample(names, 2))
            async with client.lock(first), client.lock(second):
                end = w.clock.now() + chance.uniform(0.5, 3)
                await until(w, lambda end=end: w.clock.now() >= end)  # type: ignore[misc]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadlockDetector, "_read", counting)
        tasks = [asyncio.create_task(work(number)) for number in range(24)]
        await time_passes(w, lambda: all(task.done() for task in tasks), step=0.5)
        await asyncio.gather(*tasks)
    assert store_reads > 20, "nobody looked, so nothing was shown"
