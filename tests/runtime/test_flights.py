"""Launched batches: late together, each ends once, and a client can be closed after it."""

import asyncio
from pathlib import Path

import leasehold
from tests.servers.redis import RedisServer

MANY = 40
"""So many calls at once leave in two flights."""


async def test_flights_that_are_late_together_end_once_each(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with asyncio.timeout(30):
            async with leasehold.connect(server.url, call_timeout=0.3) as client:
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
