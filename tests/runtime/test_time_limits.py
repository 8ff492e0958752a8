"""A time limit belongs to a call: one caller's short ttl costs nobody else an answer."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import dibs
from dibs import AcquireTimeout, BackendUnavailable, Client
from dibs.errors import DibsError
from dibs.model import Acquire, Inspect, Release, Renew
from dibs.runtime.aio import AsyncRuntime
from dibs.session import StoreSession
from dibs.sync import connect
from dibs.testing.proxy import FaultProxy
from tests.runtime.conftest import url_of
from tests.runtime.stores import TappedStore

AWAY = 0.05
"""Seconds that an answer is on its way: more than a sixth of the short ttl."""


def proxy_of(url: str) -> FaultProxy:
    port = urlsplit(url).port
    assert port is not None
    return FaultProxy("127.0.0.1", port)


ONE_STORE = pytest.mark.parametrize(
    "kind", ["redis", pytest.param("postgres", marks=pytest.mark.long)]
)


@pytest.mark.once
@ONE_STORE
async def test_one_callers_short_ttl_fails_nobody_elses_commands(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Answers take longer than a ttl of 0.1 s leaves for one attempt."""
    url = url_of(kind, request, tmp_path)
    with proxy_of(url) as proxy:
        proxy.delay(AWAY)
        async with dibs.connect(proxy.url_for(url)) as client, asyncio.timeout(60):
            await client.status("connected")
            runtime = client.session.loop_runtime()
            hurried = [asyncio.create_task(_renew_for_ever(runtime, n)) for n in range(4)]
            try:
                await asyncio.gather(*(_work(runtime, n) for n in range(4)))
            finally:
                for task in hurried:
                    task.cancel()
                await asyncio.wait(hurried)


async def _renew_for_ever(runtime: AsyncRuntime, number: int) -> None:
    while True:
        with suppress(DibsError):
            await runtime.call(Renew(b"lock:hurried", f"hurried-{number}", 0.1))
        await asyncio.sleep(0)


async def _work(runtime: AsyncRuntime, number: int) -> None:
    key = b"lock:work-%d" % number
    for turn in range(6):
        lease = f"{number}-{turn}"
        await runtime.call(Acquire(key, lease, "me", 30.0))
        await runtime.call(Renew(key, lease, 30.0))
        await runtime.call(Release(key, lease))


@pytest.mark.once
@ONE_STORE
def test_what_has_no_ttl_costs_no_lease_on_a_dead_connection(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A release, and a resize as after a `downgrade()` without an answer."""
    url = url_of(kind, request, tmp_path)
    with proxy_of(url) as proxy, connect(proxy.url_for(url)) as client:
        lease = client.lock("kept", ttl=1.5).acquire()
        other, another = (client.rwlock(name, ttl=60).write().acquire() for name in "ab")
        assert client.session.keeper.flush(5)
        before = proxy.accepted
        proxy.hang()
        other._abandon()
        another._settle(1)
        proxy.wait_for(lambda: proxy.accepted > before)
        proxy.heal()
        assert not lease.wait_lost(timeout=2.0)
        lease.release()


async def test_reads_travel_apart_and_renewals_pass_a_crowd_of_them() -> None:
    """While the store works at reads, a renewal of another leaves at once."""
    store = TappedStore(turns=2)
    async with Client(StoreSession(store)) as client:
        lease = await client.lock("held").acquire()
        runtime = client.session.loop_runtime()
        store.batches.clear()
        looks = [
            asyncio.create_task(runtime.call(Inspect(b"lock:%d" % number))) for number in range(600)
        ]
        await asyncio.sleep(0)
        await lease.renew()
        assert not all(look.done() for look in looks)
        await asyncio.gather(*looks)
        await lease.release()
    kinds = [{isinstance(command, Inspect) for command in batch} for batch in store.batches]
    assert all(len(each) == 1 for each in kinds)


NO_ANSWER = "in time|did not answer within|locked for|timeout expired"

LATE = 4.0
"""Seconds: less than a sixth of the ttl, which a call would have otherwise; a second is meant."""


class LockedFile:
    """Another program, which can lock a SQLite file."""

    def __init__(self, path: Path) -> None:
        self.program = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.program.execute("PRAGMA journal_mode=WAL")

    def hang(self) -> None:
        self.program.execute("BEGIN IMMEDIATE")

    def heal(self) -> None:
        self.program.execute("ROLLBACK")


@pytest.fixture
def way(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Any, str, str]]:
    """What stands between us and a store, the URL that leads through it, and the one around it."""
    with ExitStack() as stack:
        url = url_of(kind, request, tmp_path)
        if kind == "sqlite":
            file = LockedFile(tmp_path / "leases.db")
            stack.callback(file.program.close)
            yield file, url, url
            return
        proxy = stack.enter_context(proxy_of(url))
        yield proxy, proxy.url_for(url), url


WAYS = ["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.long)]


@pytest.mark.once
@pytest.mark.parametrize("kind", WAYS)
def test_a_caller_waits_as_long_as_he_said_also_in_line(
    way: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for who is in the way, which a waiter asks, and its leave, which it takes."""
    monkeypatch.setattr("dibs.locks.waiting.ASIDE", 0.3)
    monkeypatch.setattr("dibs.locks.acquire.ASIDE", 0.3)
    proxy, url, around = way
    with connect(url) as client, connect(around) as other:
        for _ in ("before it is connected", "in the middle"):
            proxy.hang()
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match=NO_ANSWER):
                client.lock("patient", ttl=60).acquire(wait=0.2)
            assert time.monotonic() - began < LATE
            proxy.heal()
            client.lock("patient").acquire(wait=20).release()
        held = other.lock("patient").acquire()
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, AcquireTimeout)):
            client.lock("patient", ttl=60).acquire(wait=1.0, on_wait=lambda _: proxy.hang())
        assert time.monotonic() - began < 1.0 + LATE
        proxy.heal()
        held.release()
        client.lock("patient").acquire(wait=20).release()
