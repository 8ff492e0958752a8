"""Clients over PostgreSQL: leases that outlive breaks, and waiters that are served."""

import asyncio
import gc
import os
import threading
import time
from pathlib import Path

import pytest

import dibs
import dibs.sync
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.connections_help import admin

LISTENERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE application_name = 'dibs' AND query LIKE 'LISTEN%'"""
ALL = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE application_name = 'dibs'"""


async def until_queued(client: dibs.Client, waiters: int) -> None:
    while (await client.status("x")).waiting < waiters:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("whom", [LISTENERS, ALL])
def test_a_waiter_is_served_though_connections_end(whom: str, postgres_url: str) -> None:
    async def body() -> float:
        async with (
            dibs.connect(postgres_url) as holder,
            dibs.connect(postgres_url) as other,
        ):
            lease = await holder.lock("x").acquire()
            waiting = asyncio.create_task(other.lock("x").acquire())
            await until_queued(holder, 1)
            with admin(postgres_url) as connection:
                connection.execute(whom.encode())
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await lease.release()
            got = await waiting
            took = time.monotonic() - began
            assert got.token > lease.token
            await got.release()
            return took

    took = asyncio.run(asyncio.wait_for(body(), 30))
    assert took < 1.0, "it was pushed, and not found by asking after seconds"


@pytest.mark.parametrize("whom", [LISTENERS, ALL])
def test_a_waiting_thread_is_served_though_connections_end(whom: str, postgres_url: str) -> None:
    with (
        dibs.sync.connect(postgres_url) as holder,
        dibs.sync.connect(postgres_url) as other,
    ):
        lease = holder.lock("x").acquire()
        got: list[dibs.sync.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(wait=30)))
        thread.start()
        while holder.status("x").waiting < 1:
            time.sleep(0.005)
        time.sleep(0.2)  # it asked again, now that somebody listens for it
        with admin(postgres_url) as connection:
            connection.execute(whom.encode())
        time.sleep(0.5)
        began = time.monotonic()
        lease.release()
        thread.join(30)
        assert time.monotonic() - began < 1.5
        assert got[0].token > lease.token
        got[0].release()


@pytest.mark.slow
def test_a_lease_outlives_a_crash_of_the_server(tmp_path: Path) -> None:
    """It is renewed again as soon as the server is back, and nobody else got it meanwhile."""
    with PostgresServer(tmp_path / "server") as server:
        with dibs.sync.connect(server.url) as client:
            with client.lock("x", ttl=6) as lease:
                server.kill()
                server.start()
                end = time.monotonic() + 9
                while time.monotonic() < end:
                    lease.ensure()
                    time.sleep(0.05)
                with dibs.sync.connect(server.url) as other:
                    assert other.lock("x").try_acquire() is None


def test_a_child_has_connections_of_its_own(postgres_url: str) -> None:
    with dibs.sync.connect(postgres_url) as client:
        lease = client.lock("x").acquire()
        time.sleep(0.05)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                refused = client.lock("x").try_acquire() is None
                with client.lock("y"):
                    code = 0 if refused and lease.lost else 3
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not lease.lost
        lease.renew()
        assert lease.release()


def test_many_threads_need_few_connections(postgres_url: str) -> None:
    with dibs.sync.connect(postgres_url) as client:

        def cycle(number: int) -> None:
            for _ in range(5):
                with client.lock(f"{number}"):
                    pass

        threads = [threading.Thread(target=cycle, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with admin(postgres_url) as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"
            ).fetchall()
    assert count <= 12


def test_loops_that_end_without_a_word(postgres_url: str) -> None:
    """A client that nobody closes may be used in one loop after the other, and warns of nothing."""

    def tokens() -> list[int]:
        client = dibs.connect(postgres_url)

        async def cycle() -> int:
            async with client.lock("x") as lease:
                return lease.token

        return [asyncio.run(cycle()) for _ in range(3)]

    found = tokens()
    assert found == sorted(set(found))
    gc.collect()
