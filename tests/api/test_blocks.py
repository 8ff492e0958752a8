"""A block gives up its own lease, however it is entered and left."""

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

import dibs
import dibs.sync


@pytest.fixture
def client() -> Iterator[dibs.sync.Client]:
    client = dibs.sync.connect(f"memory://{uuid.uuid4()}")
    yield client
    client.close()


def test_blocks_may_be_entered_and_left_by_hand(client: dibs.sync.Client) -> None:
    """The last one that was entered is left first."""
    lock, semaphore = client.lock("a"), client.semaphore("s", 2)
    with pytest.raises(RuntimeError, match="a block of a is left that nobody entered"):
        lock.__exit__(None, None, None)
    with ExitStack() as stack:
        lease = stack.enter_context(lock)
        assert lease.remaining
    assert not lock.locked()
    with semaphore as outer:
        inner = semaphore.__enter__()
        semaphore.__exit__(None, None, None)
        assert outer.remaining
        assert not inner.remaining
    assert not outer.remaining


def test_a_block_that_another_thread_leaves_ends_no_other_ones_lease(
    client: dibs.sync.Client,
) -> None:
    """As a framework does that enters a generator in one thread and finishes it in another."""
    semaphore = client.semaphore("slots", 2)
    enters, enters_too, leaves = (ThreadPoolExecutor(1) for _ in range(3))
    first, second = ExitStack(), ExitStack()
    one = enters.submit(first.enter_context, semaphore).result()
    enters_too.submit(second.enter_context, semaphore).result()
    with pytest.raises(RuntimeError, match=r"write `with lock.acquire\(\) as lease:`"):
        leaves.submit(first.close).result()
    assert not one.lost
    assert semaphore.status().used == 2
    enters_too.submit(second.close).result()  # its own
    assert [each.slots for each in semaphore.status().holders] == [one.slots]
    enters.shutdown()  # whoever ended has left his block to another
    enters_too.submit(semaphore.__exit__, None, None, None).result()
    assert not semaphore.status().holders
    for each in (enters_too, leaves):
        each.shutdown()


async def test_a_body_that_is_dropped_in_its_block_keeps_nothing() -> None:
    """Nobody steps it any more, while its loop and its lock live on."""
    async with dibs.connect(f"memory://{uuid.uuid4()}") as client:
        lock = client.lock("a")

        async def body() -> None:
            async with lock:
                await asyncio.get_running_loop().create_future()

        dropped = body()
        dropped.send(None)
        assert await lock.locked()
        with suppress(RuntimeError):  # it may have to wait for the store, and nobody steps it
            dropped.close()
        del dropped
        async with asyncio.timeout(10):
            while await lock.locked():
                await asyncio.sleep(0)
