"""Servers that are killed, restarted, cut off: no lease is lost within its ttl, no waiter forgotten."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.testing.proxy import FaultProxy
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.contending import CYCLES, USERS, WORKER
from tests.stores.http.processes import Balancer, DibsServer

pytestmark = pytest.mark.once

LONG = 20.0
"""Seconds within which what must happen happens, on a busy machine too."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DibsServer]:
    with DibsServer(tmp_path, f"sqlite:///{tmp_path}/leases.db") as server:
        yield server


async def until_queued(lock: dibs.Lock) -> None:
    """Somebody waits for it."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                if (await lock.status()).waiting:
                    return
            except dibs.BackendUnavailable:
                pass
            await asyncio.sleep(0.02)


async def test_a_killed_server_costs_no_lease_and_no_waiter(server: DibsServer) -> None:
    async with dibs.connect(server.url) as one, dibs.connect(server.url) as two:
        held = await one.lock("a", ttl=12).acquire()
        waiter = asyncio.create_task(two.lock("a").acquire(wait=60))
        await until_queued(one.lock("a"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        held.ensure()
        async with asyncio.timeout(LONG):
            await held.renew()
            await until_queued(one.lock("a"))
            assert not waiter.done()
            await held.release()
            lease = await waiter
        assert lease.token > held.token
        await lease.release()


def test_likewise_for_threads(server: DibsServer) -> None:
    granted: list[dibs.sync.Lease] = []
    with dibs.sync.connect(server.url) as one, dibs.sync.connect(server.url) as two:
        held = one.lock("a", ttl=12).acquire()
        waiter = threading.Thread(target=lambda: granted.append(two.lock("a").acquire(wait=60)))
        waiter.start()
        wait_until(lambda: one.lock("a").status().waiting, "somebody in line")
        server.kill()
        server.start()
        held.ensure()
        held.renew()
        held.release()
        waiter.join(LONG)
        assert granted[0].token > held.token
        granted[0].release()


@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_a_lease_is_kept_through_a_short_outage(server: DibsServer, fault: str) -> None:
    with FaultProxy(HOST, server.port) as proxy:
        async with dibs.connect(proxy.url_for(server.url)) as client:
            async with client.lock("a", ttl=9) as lease:
                getattr(proxy, fault)()
                await asyncio.sleep(3.2)  # until after a renewal that fails
                in_outage = lease.remaining
                proxy.heal()
                async with asyncio.timeout(LONG):
                    while lease.remaining <= in_outage:
                        lease.ensure()
                        await asyncio.sleep(0.02)
            async with asyncio.timeout(LONG), client.lock("a"):
                pass


async def test_a_waiter_outlives_a_cut_and_is_granted_soon(server: DibsServer) -> None:
    """Its push may be lost with the connection: it asks again once there is another stream."""
    with FaultProxy(HOST, server.port) as proxy:
        async with (
            dibs.connect(server.url) as holder,
            dibs.connect(proxy.url_for(server.url)) as client,
        ):
            held = await holder.lock("a").acquire()
            waiter = asyncio.create_task(client.lock("a").acquire(wait=30))
            await until_queued(holder.lock("a"))
            proxy.cut()
            await held.release()
            async with asyncio.timeout(LONG):
                lease = await waiter
            await lease.release()


async def test_one_of_two_servers_dies(server: DibsServer, tmp_path: Path) -> None:
    """Who holds and who waits goes on at the other one."""
    with DibsServer(tmp_path, server.store, server.key) as other:
        with Balancer([server.port, other.port]) as balancer:
            url = f"http://{server.key}@{HOST}:{balancer.port}"
            async with dibs.connect(url) as one, dibs.connect(url) as two:
                held = await one.lock("a", ttl=12).acquire()
                waiter = asyncio.create_task(two.lock("a").acquire(wait=60))
                await until_queued(one.lock("a"))
                await asyncio.to_thread(server.kill)
                async with asyncio.timeout(LONG):
                    while True:
                        try:
                            await held.renew()
                            break
                        except dibs.BackendUnavailable:
                            await asyncio.sleep(0.02)
                    assert not waiter.done()
                    await held.release()
                    lease = await waiter
                assert lease.token > held.token
                await lease.release()


@pytest.mark.multiprocess
@pytest.mark.parametrize("worlds", ["async blocking"])
def test_processes_contend_for_one_lock(server: DibsServer, tmp_path: Path, worlds: str) -> None:
    arguments = [server.url, str(tmp_path / "marker")]
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
        assert (worker.returncode, err) == (0, "")
        tokens += [int(line) for line in out.split()]
    assert len(set(tokens)) == len(workers) * USERS * CYCLES
    assert not os.path.exists(arguments[1])
