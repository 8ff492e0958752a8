"""Event loops that come and go, are blocked, or are many at once, with one client."""

import asyncio
import ctypes
import gc
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import Client, LeaseLost
from dibs.session import StoreSession
from tests.runtime.conftest import SHARED, url_of
from tests.runtime.stores import TappedStore


@pytest.fixture
def client() -> Iterator[Client]:
    client = dibs.connect(f"memory://{uuid4()}")
    yield client
    client.session.close()


def test_one_client_serves_loop_after_loop_and_keeps_none(tmp_path: Path) -> None:
    client = dibs.connect(f"sqlite:///{tmp_path / 'leases.db'}")
    tokens: list[int] = []

    async def cycle() -> weakref.ref[Any]:
        async with client.lock("a") as lease:
            tokens.append(lease.token)
            return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(cycle()) for _ in range(10)]
    assert tokens == sorted(set(tokens))
    until = time.monotonic() + 5
    while sum(loop() is not None for loop in loops) > 1 and time.monotonic() < until:
        gc.collect()  # a store's thread may still be on its way out
        time.sleep(0.01)
    assert sum(loop() is not None for loop in loops) <= 1
    client.session.close()


@pytest.mark.parametrize("turns", [0, 3], ids=["in place", "on its way"])
def test_asyncio_run_that_fails_in_mid_flight_leaves_nothing(turns: int) -> None:
    store = TappedStore(turns=turns)
    client = Client(StoreSession(store))
    lock = client.lock("shared")

    async def hold(name: str) -> None:
        async with client.lock(name):
            await asyncio.sleep(60)

    async def waits() -> None:
        async with lock:
            await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.create_task(hold(f"key-{n}")) for n in range(20)]
        tasks += [asyncio.create_task(waits()) for _ in range(5)]
        for _ in range(7):
            await asyncio.sleep(0)
        raise ZeroDivisionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())
        gc.collect()
    client.session.keeper.flush(5)

    async def look() -> list[Any]:
        return [status async for status in client.list()]

    assert asyncio.run(look()) == []
    client.session.close()


@pytest.mark.parametrize("turns", [0, 3], ids=["in place", "on its way"])
def test_a_loop_that_is_closed_under_its_tasks_orphans_no_lease_for_ever(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody cancels them: the loop is just gone, as after `loop.stop()` and `loop.close()`."""
    store = TappedStore(turns=turns)
    client = Client(StoreSession(store))
    other = dibs.sync.Client(StoreSession(store))
    lock = client.lock("a", ttl=0.5)
    entered = asyncio.Event()

    async def hold() -> None:
        async with lock:
            entered.set()
            await asyncio.Event().wait()

    async def main() -> None:
        names = [f"flying-{number}" for number in range(5)]
        tasks: list[Any] = [asyncio.create_task(hold())]
        await entered.wait()
        tasks += [asyncio.create_task(client.lock(each, ttl=0.5).acquire()) for each in names]
        for task in tasks:
            task._log_destroy_pending = False  # asyncio's own complaint
        await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        del loop
        gc.collect()
        for name in ("a", *(f"flying-{number}" for number in range(5))):
            other.lock(name).acquire(wait=5).release()
    ours = [w for w in warned if "never awaited" in str(w.message)]
    assert ours == []
    assert "Task was destroyed" not in caplog.text

    async def cycle() -> bool:
        async with client.lock("a", wait=5):
            return True

    assert asyncio.run(cycle()), "the client is of use in a new loop"
    client.session.close()
    other.close()


def test_a_blocked_event_loop_loses_no_lease(client: Client) -> None:
    async def main() -> None:
        async with client.lock("a", ttl=0.4) as lease:
            time.sleep(0.9)
            lease.ensure()
            assert await client.lock("a").locked()

    asyncio.run(main())


@pytest.mark.serial
def test_who_held_the_interpreters_lock_past_the_deadline_is_told_right_after(
    client: Client,
) -> None:
    """Not even the keeper runs while a C call holds the GIL: the clock tells, not a flag."""
    hang = ctypes.PyDLL(None).usleep

    async def main() -> None:
        async with client.lock("a", ttl=0.3) as lease:
            await asyncio.sleep(0)
            hang(900_000)
            assert lease.lost
            lease.ensure()

    with pytest.raises(LeaseLost, match="no renewal got through before its deadline"):
        asyncio.run(main())


LOOPS, ROUNDS, TASKS, THREADS, TURNS = 3, 2, 4, 4, 6


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "store", ["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in SHARED[1:])]
)
def test_threads_and_loops_exclude_each_other_on_one_client(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client = dibs.connect(url_of(store, request, tmp_path))  # made outside of any loop, used in all
    blocking = dibs.sync.Client(client.session)
    inside, tokens = threading.Lock(), list[int]()

    def enter(lease: Any) -> None:
        assert inside.acquire(blocking=False), "two at once"
        tokens.append(lease.token)

    def threads() -> None:
        for _ in range(TURNS * ROUNDS):
            with blocking.lock("shared") as lease:
                enter(lease)
                inside.release()

    async def task() -> None:
        for _ in range(TURNS):
            async with client.lock("shared") as lease:
                enter(lease)
                await asyncio.sleep(0)
                inside.release()

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(TASKS)))

    def loops() -> None:
        for _ in range(ROUNDS):
            asyncio.run(tasks())

    works = [loops] * LOOPS + [threads] * THREADS
    with ThreadPoolExecutor(len(works)) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result(100)
    assert len(tokens) == (LOOPS * TASKS + THREADS) * ROUNDS * TURNS
    assert tokens == sorted(set(tokens))
    assert list(blocking.list()) == []
    blocking.close()
