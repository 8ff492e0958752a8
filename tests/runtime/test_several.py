"""Several commands of one caller travel together, and each has its own end."""

import asyncio
from collections.abc import Sequence

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Granted, Release, Released
from dibs.runtime.port import TimedReply, step
from dibs.session import StoreSession
from dibs.stores.port import MAX_BATCH
from tests.runtime.stores import TappedStore


def acquires(count: int, prefix: str = "k") -> list[Command]:
    return [Acquire(f"lock:{prefix}{n}".encode(), f"id-{n}", "me", 30.0) for n in range(count)]


def replies(told: Sequence[object]) -> list[type]:
    return [type(each.reply) if isinstance(each, TimedReply) else type(each) for each in told]


async def test_tasks_commands_travel_in_one_batch() -> None:
    store = TappedStore(turns=1)
    rt = StoreSession(store).loop_runtime()
    await rt.ready()
    told = await rt.call_all(acquires(5))
    assert replies(told) == [Granted] * 5
    assert [len(batch) for batch in store.batches] == [5]
    await rt.close()


def test_threads_commands_travel_in_one_batch() -> None:
    store = TappedStore()
    rt = StoreSession(store).thread_runtime()
    told = step(rt.call_all(acquires(MAX_BATCH + 3)))
    assert replies(told) == [Granted] * (MAX_BATCH + 3)
    assert [len(batch) for batch in store.kept] == [MAX_BATCH, 3]
    rt.close()


async def test_an_error_is_told_for_each_and_raised_for_none() -> None:
    store = TappedStore(turns=1)
    rt = StoreSession(store).loop_runtime()
    await rt.ready()

    def fail(commands: Sequence[Command]) -> None:
        raise BackendUnavailable("away")

    store.before = fail
    assert replies(await rt.call_all(acquires(3))) == [BackendUnavailable] * 3
    threads = StoreSession(store).thread_runtime()
    assert replies(step(threads.call_all(acquires(3)))) == [BackendUnavailable] * 3
    threads.close()
    await rt.close()


async def test_a_caller_waits_for_no_longer_than_it_wants() -> None:
    store = TappedStore(turns=1)
    rt = StoreSession(store).loop_runtime()
    await rt.ready()
    store.hold = asyncio.Event()
    told = await rt.call_all(acquires(2), 0.01)
    assert [str(each) for each in told] == ["the store did not answer within 0.01 s"] * 2
    store.hold.set()
    await rt.close()


async def test_a_cancelled_caller_takes_along_what_has_not_left() -> None:
    store = TappedStore(turns=1)
    rt = StoreSession(store).loop_runtime()
    await rt.ready()
    store.hold = asyncio.Event()
    first = asyncio.create_task(rt.call_all(acquires(2)))
    while not store.batches:
        await asyncio.sleep(0)
    second = asyncio.create_task(rt.call_all(acquires(2, "later")))
    await asyncio.sleep(0)
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    store.hold.set()
    released = await rt.call_all([Release(b"lock:k0", "id-0"), Release(b"lock:k1", "id-1")])
    assert replies(released) == [Released] * 2, "what had left was done"
    assert not any(b"later" in command.key for batch in store.batches for command in batch)
    await rt.close()
