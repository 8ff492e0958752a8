"""Clients over PostgreSQL: leases that outlive breaks, waiters that are served, processes that contend."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
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


CHILD = """
import asyncio, json, sys, threading, time
import dibs, dibs.sync

url, world, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
clock = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)
held = []

async def task(client):
    for _ in range(rounds):
        async with client.lock("x", ttl=10) as lease:
            began = clock()
            await asyncio.sleep(0.001)
            held.append((lease.token, began, clock()))

def thread(client):
    for _ in range(rounds):
        with client.lock("x", ttl=10) as lease:
            began = clock()
            time.sleep(0.001)
            held.append((lease.token, began, clock()))

async def tasks():
    async with dibs.connect(url) as client:
        await asyncio.gather(*(task(client) for _ in range(4)))

if world == "async":
    asyncio.run(tasks())
else:
    with dibs.sync.connect(url) as client:
        threads = [threading.Thread(target=thread, args=(client,)) for _ in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
print(json.dumps(held))
"""


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, whatever happens there."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.multiprocess
@pytest.mark.parametrize("worlds", [("async", "async"), ("async", "threads")])
def test_processes_contend_and_exclude_each_other(
    worlds: tuple[str, str], postgres_url: str
) -> None:
    rounds = 25
    held = []
    with ExitStack() as stack:
        started = [stack.enter_context(child(postgres_url, world, str(rounds))) for world in worlds]
        for each in started:
            output, _ = each.communicate(timeout=100)
            assert each.returncode == 0
            held += json.loads(output)
    held.sort()
    assert len(held) == 2 * 4 * rounds
    assert len({token for token, _, _ in held}) == len(held)
    overlaps = [(one, two) for one, two in pairwise(held) if two[1] < one[2]]
    assert overlaps == [], "in the order of their tokens, each began when the last had ended"


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
