"""`connect("redis://…")` as users have it: outages, and threads that share a client."""

import asyncio
import threading

import pytest

import dibs
import dibs.sync
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer


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
