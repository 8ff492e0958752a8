"""One client, used by many threads and by many event loops that come and go, all at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.testing import Recorder, check, check_liveness, read
from tests.runtime.conftest import SHARED, url_of

LOOPS, ROUNDS, TASKS, THREADS, TURNS = 3, 2, 4, 4, 6


def resources(client: Any) -> list[tuple[Any, int]]:
    """What they share, with the capacity of each."""
    return [(client.lock("lock"), 1), (client.semaphore("semaphore", 2), 2)]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "store", ["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in SHARED[1:])]
)
def test_threads_and_loops_exclude_each_other_on_one_client(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client = dibs.connect(url_of(store, request, tmp_path))  # made outside of any loop, used in all
    blocking = dibs.sync.Client(client.session)
    history = tmp_path / "history"
    recorder = Recorder(history)

    def threads() -> None:
        for resource, capacity in resources(blocking) * TURNS * ROUNDS:
            asked = recorder.asked(resource.key)
            with resource as lease:
                recorder.granted(lease, asked, capacity=capacity)
                recorder.releasing(lease)

    async def task() -> None:
        for resource, capacity in resources(client) * TURNS:
            asked = recorder.asked(resource.key)
            async with resource as lease:
                recorder.granted(lease, asked, capacity=capacity)
                await asyncio.sleep(0)
                recorder.releasing(lease)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(TASKS)))

    def loops() -> None:
        for _ in range(ROUNDS):
            asyncio.run(tasks())

    works = [loops] * LOOPS + [threads] * THREADS
    with ThreadPoolExecutor(len(works)) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result(100)
    recorder.close()
    events = read(history)
    granted = sum(event.what == "granted" for event in events)
    assert granted == (LOOPS * TASKS + THREADS) * ROUNDS * TURNS * 2
    assert check(events) == []
    assert check_liveness(events, 60) == []
    assert list(blocking.list()) == []
    blocking.close()
