"""One client, used by many threads and by many event loops that come and go, all at once."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs.testing import Recorder, check, check_liveness, read
from tests.runtime.real_stores import SHARED, url_of

LOOPS, ROUNDS, TASKS, THREADS, TURNS = 3, 2, 4, 4, 12
CAPACITY = 2


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        *(pytest.param(kind, marks=[pytest.mark.long, pytest.mark.once]) for kind in SHARED[1:]),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}"
    return url_of(request.param, request, tmp_path)


class Crowd:
    """Threads and tasks that share primitives, and a history of what each of them held."""

    def __init__(self, url: str, folder: Path) -> None:
        self.client = dibs.connect(url)  # made outside of any loop, used in all
        self.blocking = dibs.sync.Client(self.client.session)
        self.history = folder / "history"
        self.recorder = Recorder(self.history)
        self.failures: list[BaseException] = []
        self.tokens: list[int] = []
        self.of_tasks = self._resources(self.client)
        self.of_threads = self._resources(self.blocking)

    def _resources(self, client: Any) -> list[tuple[Any, int]]:
        return [
            (client.lock("lock"), 1),
            (client.semaphore("semaphore", CAPACITY), CAPACITY),
        ]

    def run(self, works: list[Callable[[], None]]) -> None:
        """Each in a thread of its own, all begun at once; what fails is told."""
        gate = threading.Barrier(len(works))

        def guarded(work: Callable[[], None]) -> None:
            try:
                gate.wait(60)
                work()
            except BaseException as error:
                self.failures.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()

    def blocking_work(self) -> None:
        for _ in range(TURNS * ROUNDS):
            for resource, capacity in self.of_threads:
                asked = self.recorder.asked(resource.key)
                with resource as lease:
                    self._held(lease, asked, capacity)

    def loops(self) -> None:
        for _ in range(ROUNDS):
            asyncio.run(self._loop())

    async def _loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(self._task())

    async def _task(self) -> None:
        for _ in range(TURNS):
            for resource, capacity in self.of_tasks:
                asked = self.recorder.asked(resource.key)
                async with resource as lease:
                    self._held(lease, asked, capacity)
                    await asyncio.sleep(0)
                    lease.ensure()
                    self.recorder.releasing(lease)

    def _held(self, lease: Any, asked: float, capacity: int) -> None:
        self.recorder.granted(lease, asked, capacity=capacity)
        self.tokens.append(lease.token)
        if isinstance(lease, dibs.sync.Lease):
            lease.ensure()
            self.recorder.releasing(lease)


@pytest.mark.multiprocess
def test_threads_and_loops_exclude_each_other_on_one_client(url: str, tmp_path: Path) -> None:
    crowd = Crowd(url, tmp_path)
    crowd.run([crowd.loops] * LOOPS + [crowd.blocking_work] * THREADS)
    assert crowd.failures == []
    assert len(crowd.tokens) == (LOOPS * TASKS + THREADS) * ROUNDS * TURNS * 2
    events = read(crowd.history)
    assert check(events) == []
    assert check_liveness(events, 60) == []
    assert [status.name for status in crowd.blocking.list()] == []
    crowd.recorder.close()
    crowd.blocking.close()


@pytest.mark.multiprocess
def test_a_lease_of_one_loop_is_seen_lost_and_given_up_by_others(url: str) -> None:
    """What is a plain call works anywhere; a thread may wait for what a loop holds."""
    client = dibs.connect(url)
    blocking = dibs.sync.Client(client.session)
    lock, same = client.lock("a"), blocking.lock("a")
    held, done = threading.Event(), threading.Event()
    leases: list[dibs.Lease] = []

    async def hold() -> None:
        async with lock as lease:
            leases.append(lease)
            held.set()
            await asyncio.to_thread(done.wait, 60)

    loop = threading.Thread(target=asyncio.run, args=(hold(),))
    loop.start()
    assert held.wait(60)
    leases[0].ensure()
    assert same.try_acquire() is None

    async def in_another_loop() -> bool:
        leases[0].ensure()
        return await lock.try_acquire() is None

    assert asyncio.run(in_another_loop())
    waiter = threading.Thread(target=lambda: same.acquire(wait=60).release())
    waiter.start()
    while not same.status().waiters:
        pass
    done.set()
    loop.join(60)
    waiter.join(60)
    assert leases[0].remaining == 0
    assert not same.locked()
    blocking.close()
