"""Who is in no circle is told nothing."""

import asyncio
import random
from typing import Any

import pytest

from dibs import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.core.names import fingerprint, wait_key
from dibs.model import Inspect, Status
from dibs.primitives.deadlock import Detective
from tests.primitives.circles import all_done, ask, nothing_left, outcomes, ring
from tests.primitives.waits import pause, time_passes, until
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


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
    original = Detective._read

    async def counting(self: Detective, key: bytes) -> Status:
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
        patch.setattr(Detective, "_read", counting)
        tasks = [asyncio.create_task(work(number)) for number in range(24)]
        await time_passes(w, lambda: all(task.done() for task in tasks), step=0.5)
        await asyncio.gather(*tasks)
    assert store_reads > 20, "nobody looked, so nothing was shown"
