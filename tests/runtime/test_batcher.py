"""Group commit: who leaves at once, who leaves together, and what a failure costs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dibs import BackendUnavailable, Client
from dibs.clock import SystemClock
from dibs.errors import DibsError
from dibs.model import Acquire, Command, Granted, Inspect, Release, Released, Renew, Reply, Revoke
from dibs.runtime.aio import READS
from dibs.runtime.batcher import Batcher
from dibs.runtime.port import TimedReply, step
from dibs.session import StoreSession
from dibs.stores.port import MAX_BATCH, Done, GiveUp
from tests.locks.worlds import away, heal
from tests.runtime.stores import TappedStore


@pytest.fixture
async def store() -> TappedStore:
    return TappedStore(turns=1)


@pytest.fixture
async def client(store: TappedStore) -> AsyncIterator[Client]:
    client = Client(StoreSession(store, call_timeout=5))
    await client._ready()
    store.batches.clear()
    yield client
    heal(store)
    await client.close()


async def test_sixty_four_tasks_leave_together(client: Client, store: TappedStore) -> None:
    async def cycles(name: str) -> None:
        for _ in range(15):
            async with client.lock(name):
                pass

    await asyncio.gather(*(cycles(f"key-{n}") for n in range(64)))
    sizes = [len(batch) for batch in store.batches]
    assert sum(sizes) == 64 * 15 * 2
    assert sum(sizes) / len(sizes) > 60, sizes


async def test_a_batch_has_no_more_than_its_limit_and_renewals_first(
    client: Client, store: TappedStore
) -> None:
    leases = [await client.lock(f"held-{n}").acquire() for n in range(100)]
    store.batches.clear()
    first = asyncio.create_task(client.lock("first").acquire())
    while not store.batches:
        await asyncio.sleep(0)
    acquires = [asyncio.create_task(client.lock(f"new-{n}").acquire()) for n in range(600)]
    await asyncio.sleep(0)
    renewals = [asyncio.create_task(lease.renew()) for lease in leases]
    await asyncio.gather(first, *acquires, *renewals)
    assert [len(batch) for batch in store.batches] == [1, MAX_BATCH, 700 - MAX_BATCH]
    kinds = [type(command).__name__ for command in store.batches[1]]
    assert kinds[:100] == ["Renew"] * 100
    for task in (first, *acquires):
        await task.result().release()
    for lease in leases:
        await lease.release()


async def test_a_release_never_overtakes_the_acquire_of_its_key(
    client: Client, store: TappedStore
) -> None:
    first = asyncio.create_task(client.status("first"))
    others = [asyncio.create_task(client.lock(f"new-{n}").acquire()) for n in range(MAX_BATCH)]
    await asyncio.sleep(0)
    key, runtime = b"lock:both", client.session.loop_runtime()
    both = (Acquire(key, "an-id", "me", 30.0), Release(key, "an-id"))
    acquired, released = await runtime.call_all(both)
    replies = [told.reply for told in (acquired, released) if isinstance(told, TimedReply)]
    assert [type(reply) for reply in replies] == [Granted, Released]
    for task in others:
        await (await task).release()
    await first


async def test_a_command_whose_caller_left_before_it_did_is_not_sent(
    client: Client, store: TappedStore
) -> None:
    store.hold = asyncio.Event()
    flying = asyncio.create_task(client.status("flying"))
    while not store.batches:
        await asyncio.sleep(0)
    waiting = [asyncio.create_task(client.status(f"gathered-{n}")) for n in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    flying.cancel()
    await asyncio.sleep(0)
    assert flying.cancelled()
    assert len(store.batches) == 1
    store.hold.set()
    await asyncio.wait(waiting)
    sent = [command.key for batch in store.batches for command in batch]
    assert sent == [b"lock:flying", b"lock:gathered-0", b"lock:gathered-2"]
    assert waiting[2].result().key == b"lock:gathered-2"


async def test_one_poisonous_command_costs_nobody_else(client: Client, store: TappedStore) -> None:
    def poison(commands: Sequence[Command]) -> None:
        if any(isinstance(c, Inspect) and c.key == b"lock:poison" for c in commands):
            raise BackendUnavailable("the server hung up on us")

    store.before = poison
    names = [f"key-{n}" for n in range(40)]
    names.insert(17, "poison")
    results = await asyncio.gather(*(client.status(name) for name in names), return_exceptions=True)
    failed = [name for name, r in zip(names, results, strict=True) if isinstance(r, Exception)]
    assert failed == ["poison"]


async def test_a_revocation_is_never_sent_again(client: Client, store: TappedStore) -> None:
    """It would revoke whoever came after."""
    lease = await client.lock("a").acquire()
    revokes = 0

    def lose(commands: Sequence[Command]) -> None:
        nonlocal revokes
        found = sum(isinstance(command, Revoke) for command in commands)
        revokes += found
        if found:
            raise BackendUnavailable("the answer was lost")

    store.after = lose
    others = [client.lock(f"other-{n}").locked() for n in range(9)]
    revoked = client.lock("a").revoke(reason="stop", now=True)
    *_, last = await asyncio.gather(*others, revoked, return_exceptions=True)
    assert isinstance(last, BackendUnavailable)
    assert revokes == 1
    store.after = lambda _: None
    await lease.release()


async def test_a_store_that_is_away_is_not_asked_over_and_over(
    client: Client, store: TappedStore
) -> None:
    store.before = away
    results = await asyncio.gather(
        *(client.status(f"key-{n}") for n in range(READS)), return_exceptions=True
    )
    assert all(isinstance(result, BackendUnavailable) for result in results)
    assert len(store.batches) <= 4, "one by itself, the others, and their halves"


async def test_a_late_copy_of_what_was_sent_twice_finds_its_id_buried(
    client: Client, store: TappedStore
) -> None:
    """A batch fails, its halves succeed; the first copy comes in when all is over."""
    late: list[Sequence[Command]] = []

    def first_is_late(commands: Sequence[Command]) -> None:
        if not late and len(commands) > 1:
            late.append(commands)
            raise BackendUnavailable("timed out on its way")

    store.before = first_is_late
    alone, *leases = await asyncio.gather(*(client.lock(f"key-{n}").acquire() for n in range(3)))
    assert len(late[0]) == 2
    await alone.release()
    store.batches.clear()
    for lease in leases:
        await lease.release()
    released = [c for batch in store.batches for c in batch if isinstance(c, Release)]
    assert all(release.tombstone > 0 for release in released)
    store.inner.blocking_connection().apply(late[0], 5)
    for n in range(1, 3):
        assert not await client.lock(f"key-{n}").locked()


class OneWire:
    """A connection whose batches go down together when one of them is given up."""

    inbox = ""

    parallel = 2

    def __init__(self) -> None:
        self.sent: list[Sequence[Command]] = []
        self.waiting: list[Done] = []

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        self.sent.append(commands)
        self.waiting.append(done)

        return lambda: self.answer(BackendUnavailable("the connection was closed meanwhile"))

    def answer(self, result: Sequence[Reply] | DibsError) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(result)


async def test_a_batch_is_given_up_in_its_own_time_and_others_are_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release has a long time, and a renewal behind it on a dead connection a short one."""
    monkeypatch.setattr("dibs.runtime.batcher.LEAST", 0.05)
    wire: Any = OneWire()
    batcher = Batcher(wire, asyncio.get_running_loop(), SystemClock(), 60.0)
    release = asyncio.create_task(batcher.call(Release(b"lock:a", "a")))
    await asyncio.sleep(0)
    renewal = asyncio.create_task(batcher.call(Renew(b"lock:b", "b", 0.6)))
    async with asyncio.timeout(10):
        with pytest.raises(BackendUnavailable):
            await renewal
        while len(wire.sent) < 3:
            await asyncio.sleep(0.01)
        assert [type(batch[0]) for batch in wire.sent] == [Release, Renew, Release]
        wire.answer([Released()])
        answer = await release
    assert (answer.reply, answer.resent) == (Released(), True)
    await batcher.close()


def acquires(count: int, prefix: str = "k") -> list[Command]:
    return [Acquire(f"lock:{prefix}{n}".encode(), f"id-{n}", "me", 30.0) for n in range(count)]


def replies(told: Sequence[object]) -> list[type]:
    return [type(each.reply) if isinstance(each, TimedReply) else type(each) for each in told]


async def test_commands_of_one_caller_travel_in_one_batch_and_fail_each_for_itself(
    client: Client, store: TappedStore
) -> None:
    runtime, threads = client.session.loop_runtime(), StoreSession(store).thread_runtime()
    assert replies(await runtime.call_all(acquires(5))) == [Granted] * 5
    assert [len(batch) for batch in store.batches] == [5]
    count = MAX_BATCH + 3
    assert replies(step(threads.call_all(acquires(count, "t")))) == [Granted] * count
    assert [len(batch) for batch in store.kept] == [MAX_BATCH, 3]

    store.before = away
    assert replies(await runtime.call_all(acquires(3))) == [BackendUnavailable] * 3
    assert replies(step(threads.call_all(acquires(3)))) == [BackendUnavailable] * 3
    threads.close()
