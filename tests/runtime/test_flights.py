"""Launched batches: late together, each ends once, and a client can be closed after it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs import BackendUnavailable
from dibs.backends.memory import MemoryStore
from dibs.clock import SystemClock
from dibs.model import Inspect
from dibs.runtime.batcher import Batcher
from tests.servers.redis import RedisServer

MANY = 40
"""So many calls at once leave in two flights."""


async def test_flights_that_are_late_together_end_once_each(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with asyncio.timeout(30):
            async with dibs.connect(server.url, call_timeout=0.3) as client:
                locks = [client.lock(f"key-{number}") for number in range(MANY)]
                for lease in await asyncio.gather(*(lock.acquire() for lock in locks)):
                    await lease.release()
                server.pause()
                asking = [asyncio.create_task(lock.acquire(wait=20)) for lock in locks]
                await asyncio.wait(asking, timeout=0.7)  # both flights are given up, and fly again
                server.resume()
                leases = await asyncio.gather(*asking)
                assert len({lease.key for lease in leases}) == MANY
                await asyncio.gather(*(lease.release() for lease in leases))
                batcher = client.hub.loop_runtime()._batcher
                await batcher.drain()
                assert (batcher._flying, batcher._aloft) == (0, 0)


async def test_a_launch_that_fails_is_told_to_everybody() -> None:
    def stumble(*_: object) -> None:
        raise TypeError("a store's own mistake")

    backend: Any = MemoryStore("memory://").backend(blocking=False)
    backend.launch = stumble
    batcher = Batcher(backend, asyncio.get_running_loop(), SystemClock(), 5.0)
    calls = [batcher.call(Inspect(b"lock:%d" % number)) for number in range(MANY)]
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in told] == [BackendUnavailable] * MANY
    await asyncio.wait_for(batcher.drain(), 5)


@pytest.mark.parametrize("wait", [0, 0.5])
async def test_a_wait_is_bounded_also_by_a_store_that_stands_still(
    tmp_path: Path, wait: float
) -> None:
    with RedisServer(tmp_path) as server:
        async with dibs.connect(server.url, call_timeout=60) as client:
            lock = client.lock("a")
            await (await lock.acquire()).release()
            server.pause()
            with pytest.raises(BackendUnavailable, match="within 1 s"):
                await asyncio.wait_for(lock.acquire(wait=wait), 30)
            server.resume()
            await (await lock.acquire()).release()
