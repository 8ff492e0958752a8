"""Whose a block's lease is: its block's alone, however the block is begun and left."""

import asyncio
import gc
import threading
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest

import dibs
import dibs.sync


@pytest.fixture
def client() -> Iterator[dibs.sync.Client]:
    client = dibs.sync.connect(f"memory://{uuid.uuid4()}")
    yield client
    client.close()


@pytest.fixture
def lock(client: dibs.sync.Client) -> dibs.sync.Lock:
    return client.lock("a")


def test_an_exit_stack_enters_and_leaves(lock: dibs.sync.Lock) -> None:
    with ExitStack() as stack:
        lease = stack.enter_context(lock)
        assert lease.remaining
    assert not lock.locked()


def test_one_may_enter_and_leave_by_hand(lock: dibs.sync.Lock) -> None:
    lease = lock.__enter__()
    assert lease.remaining
    lock.__exit__(None, None, None)
    assert not lock.locked()


def test_leaving_what_was_not_entered_is_told(lock: dibs.sync.Lock) -> None:
    with pytest.raises(RuntimeError, match="a block of a is left that nobody entered"):
        lock.__exit__(None, None, None)


def test_the_end_may_be_looked_up_long_before_the_beginning(lock: dibs.sync.Lock) -> None:
    leave = lock.__exit__
    lock.__enter__()
    leave(None, None, None)
    assert not lock.locked()
    lock.__enter__()
    leave(None, None, None)
    assert not lock.locked()


def test_an_end_that_was_kept_takes_nothing_from_others(client: dibs.sync.Client) -> None:
    first, second = client.lock("first"), client.lock("second")
    with ExitStack() as stack:
        first.__enter__()
        stack.push(first)
        second.__enter__()
        stack.close()
        assert second.locked()
        assert not first.locked()
        second.__exit__(None, None, None)
    assert not second.locked()


def test_by_hand_the_last_entered_is_left_first(client: dibs.sync.Client) -> None:
    semaphore = client.semaphore("s", 2)
    outer = semaphore.__enter__()
    with ExitStack() as stack:
        stack.callback(semaphore.__exit__, None, None, None)
        inner = semaphore.__enter__()
        semaphore.__exit__(None, None, None)
        assert outer.remaining
        assert not inner.remaining
    assert not outer.remaining


def test_by_hand_within_a_block(client: dibs.sync.Client) -> None:
    semaphore = client.semaphore("s", 2)
    with semaphore as outer:
        inner = semaphore.__enter__()
        semaphore.__exit__(None, None, None)
        assert outer.remaining
        assert not inner.remaining
    assert not outer.remaining


def test_a_lock_may_be_entered_again_after_its_end_was_kept(lock: dibs.sync.Lock) -> None:
    lock.__enter__()
    undo = lock.__exit__
    undo(None, None, None)
    lock.__enter__()
    lock.__exit__(None, None, None)
    assert not lock.locked()


def test_an_end_kept_by_another_thread_takes_nothing(client: dibs.sync.Client) -> None:
    semaphore = client.semaphore("s", 2)
    kept: list[object] = []
    thread = threading.Thread(target=lambda: kept.append(semaphore.__exit__))
    thread.start()
    thread.join()
    lease = semaphore.__enter__()
    kept.clear()
    gc.collect()
    assert lease.remaining
    semaphore.__exit__(None, None, None)


def test_looking_the_end_up_takes_nothing_from_a_block(lock: dibs.sync.Lock) -> None:
    with lock as lease:
        assert callable(lock.__exit__)
        assert hasattr(dibs.sync.Lock, "__exit__")
        gc.collect()
        assert lease.remaining
    assert not lock.locked()


def test_a_subclass_may_do_more_on_both_ends(client: dibs.sync.Client) -> None:
    told: list[str] = []

    class Telling(dibs.sync.Lock):
        def __enter__(self) -> dibs.sync.Lease:
            told.append("enter")
            return super().__enter__()

        def __exit__(self, *about: object) -> None:
            told.append("exit")
            super().__exit__(*about)  # type: ignore[arg-type]

    lock = Telling("a", client=client)
    with lock as lease:
        assert lease.remaining
    assert not lock.locked()
    assert told == ["enter", "exit"]


def test_threads_leave_the_blocks_that_they_entered(client: dibs.sync.Client) -> None:
    shared = client.semaphore("a", 4)
    together, errors = threading.Barrier(4), list[BaseException]()

    def work() -> None:
        try:
            for _ in range(20):
                with shared as lease:
                    together.wait(10)
                    assert lease.remaining
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not shared.status().holders


def test_what_a_block_raised_passes(lock: dibs.sync.Lock) -> None:
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert not lock.locked()


async def test_an_exit_stack_enters_and_leaves_in_a_loop() -> None:
    async with dibs.connect(f"memory://{uuid.uuid4()}") as client:
        lock = client.lock("a")
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(lock)
            assert lease.remaining
        assert not await lock.locked()


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
        dropped.close()
        assert not await lock.locked()
