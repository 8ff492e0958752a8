"""`connect("redis://…")` as users have it: processes of both worlds contend for one lock."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer

WORKER = """
import asyncio, os, sys, threading
import dibs, dibs.sync

url, marker, world, users, cycles = sys.argv[1:4] + [int(each) for each in sys.argv[4:]]

def alone(lease):
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if somebody is here
    lease.ensure()
    os.unlink(marker)
    print(lease.token, flush=True)

async def main():
    async with dibs.connect(url) as client:
        async def user():
            for _ in range(cycles):
                async with client.lock("contended") as lease:
                    alone(lease)
                    await asyncio.sleep(0)
        await asyncio.gather(*(user() for _ in range(users)))

def use(client):
    for _ in range(cycles):
        with client.lock("contended") as lease:
            alone(lease)

if world == "async":
    asyncio.run(main())
else:
    with dibs.sync.connect(url) as client:
        threads = [threading.Thread(target=use, args=(client,)) for _ in range(users)]
        for each in threads: each.start()
        for each in threads: each.join()
"""

USERS, CYCLES = 4, 25


@pytest.mark.multiprocess
@pytest.mark.parametrize("worlds", ["async blocking", "async async", "blocking blocking"])
def test_processes_contend_for_one_lock(redis_url: str, tmp_path: Path, worlds: str) -> None:
    arguments = [redis_url, str(tmp_path / "marker")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments, world, str(USERS), str(CYCLES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for world in worlds.split()
    ]
    tokens: list[int] = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        assert err == ""
        tokens += [int(line) for line in out.split()]
    assert len(set(tokens)) == len(workers) * USERS * CYCLES
    assert not os.path.exists(arguments[1])


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_a_lease_is_kept_through_a_short_outage(
    redis_server: RedisServer, redis_url: str, fault: str
) -> None:
    async def main() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            async with dibs.connect(proxy.url_for(redis_url)) as client:
                async with client.lock("a", ttl=3) as lease:
                    getattr(proxy, fault)()
                    await asyncio.sleep(1.2)
                    proxy.heal()
                    await asyncio.sleep(2.5)
                    lease.ensure()
                async with asyncio.timeout(5):
                    async with client.lock("a"):
                        pass

    asyncio.run(main())


def test_a_waiter_outlives_a_cut_and_is_granted_soon(
    redis_server: RedisServer, redis_url: str
) -> None:
    """Its push may be lost with the connection: it asks again after it has subscribed again."""

    async def main() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            holder = dibs.connect(redis_url)
            async with dibs.connect(proxy.url_for(redis_url)) as client:
                held = await holder.lock("a").acquire()
                waiter = asyncio.create_task(client.lock("a").acquire(wait=10))
                while not (await holder.lock("a").status()).waiting:
                    await asyncio.sleep(0.01)
                proxy.cut()
                await held.release()
                async with asyncio.timeout(5):
                    lease = await waiter
                assert lease.token > held.token
                await lease.release()
            await holder.close()

    asyncio.run(main())


def test_threads_share_a_client(redis_url: str) -> None:
    inside, most = 0, 0
    with dibs.sync.connect(redis_url) as client:

        def use() -> None:
            nonlocal inside, most
            for _ in range(20):
                with client.lock("a"):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 1
