"""A time limit belongs to a call: one caller's short ttl costs nobody else an answer."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import dibs
from dibs import Client
from dibs.errors import DibsError
from dibs.hub import Hub
from dibs.model import Acquire, Command, Inspect, Release, Renew
from dibs.runtime.asyncio import AsyncRuntime
from dibs.testing.proxy import FaultProxy
from tests.runtime.real_stores import SHARED, url_of
from tests.runtime.stores import TappedStore

AWAY = 0.05
"""Seconds that an answer is on its way: more than a sixth of the short ttl."""


@pytest.fixture(params=SHARED)
def distant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store whose answers take longer than a ttl of 0.1 s leaves for one attempt."""
    url = url_of(request.param, request, tmp_path)
    if request.param == "sqlite":
        with busy(tmp_path / "leases.db"):
            yield url
        return
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    with FaultProxy(parts.hostname, parts.port) as proxy:
        proxy.delay(AWAY)
        yield proxy.url_for(url)


@contextmanager
def busy(path: Path) -> Iterator[None]:
    """Another program writes to the file, and takes its time about it."""
    over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
            other.execute("PRAGMA journal_mode=WAL")
            while not over.wait(AWAY / 10):
                other.execute("BEGIN IMMEDIATE")
                over.wait(AWAY)
                other.execute("ROLLBACK")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_one_callers_short_ttl_fails_nobody_elses_commands(distant: str) -> None:
    async with dibs.connect(distant) as client, asyncio.timeout(60):
        await client.status("connected")
        runtime = client.hub.loop_runtime()
        hurried = [asyncio.create_task(_renew_for_ever(runtime, n)) for n in range(4)]
        try:
            await asyncio.gather(*(_work(runtime, n) for n in range(4)))
        finally:
            for task in hurried:
                task.cancel()
            await asyncio.wait(hurried)


async def _renew_for_ever(runtime: AsyncRuntime, number: int) -> None:
    while True:
        try:
            await runtime.call(Renew(b"lock:hurried", f"hurried-{number}", 0.1))
        except DibsError:
            await asyncio.sleep(0)


async def _work(runtime: AsyncRuntime, number: int) -> None:
    key = b"lock:work-%d" % number
    for turn in range(8):
        lease = f"{number}-{turn}"
        await runtime.call(Acquire(key, lease, "me", 30.0))
        await runtime.call(Renew(key, lease, 30.0))
        await runtime.call(Release(key, lease))


async def test_reads_travel_apart_and_renewals_pass_a_crowd_of_them() -> None:
    """While the store works at reads, a renewal of another leaves at once."""
    store = TappedStore(turns=2)
    async with Client(Hub(store)) as client:
        lease = await client.lock("held").acquire()
        runtime = client.hub.loop_runtime()
        store.batches.clear()
        looks = [
            asyncio.create_task(runtime.call(Inspect(b"lock:%d" % number))) for number in range(600)
        ]
        await asyncio.sleep(0)
        await lease.renew()
        assert not all(look.done() for look in looks)
        await asyncio.gather(*looks)
        await lease.release()
    assert all(len({_is_read(command) for command in batch}) == 1 for batch in store.batches)


def _is_read(command: Command) -> bool:
    return isinstance(command, Inspect)
