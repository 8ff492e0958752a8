"""Callers that share connections: each has its own time limit, and threads get one in turn."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import dibs
from dibs import AcquireTimeout, BackendUnavailable, Client
from dibs.errors import DibsError
from dibs.model import Acquire, Inspect, Release, Renew
from dibs.runtime import pool as pools
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.pool import Pool, Slot
from dibs.session import StoreSession
from dibs.sync import connect
from dibs.testing.proxy import FaultProxy
from tests.runtime.conftest import url_of
from tests.runtime.stores import TappedStore
from tests.servers.waiting import wait_until

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


NO_ANSWER = "in time|did not answer within|timeout expired"

LATE = 4.0
"""Seconds: less than a sixth of the ttl, which a call would have otherwise; a second is meant."""


@pytest.mark.once
@ONE_STORE
def test_a_caller_waits_as_long_as_he_said_also_in_line(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for who is in the way, which a waiter asks, and its leave, which it takes."""
    monkeypatch.setattr("dibs.locks.waiting.ASIDE", 0.3)
    monkeypatch.setattr("dibs.locks.acquire.ASIDE", 0.3)
    url = url_of(kind, request, tmp_path)
    with proxy_of(url) as proxy, connect(proxy.url_for(url)) as client, connect(url) as other:
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


def test_a_caller_waits_as_long_as_he_said_for_a_locked_file(url: str) -> None:
    path = url.removeprefix("sqlite:///")
    with connect(url) as client, closing(sqlite3.connect(path, isolation_level=None)) as program:
        client.status("connected")
        program.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="locked for"):
            client.lock("patient", ttl=60).acquire(wait=0.2)
        assert time.monotonic() - began < LATE
        program.execute("ROLLBACK")


# ---- the connections that threads share ------------------------------------------------------------

SOON = 10.0
"""Seconds within which all ends when all is well."""


@pytest.fixture
def one() -> Pool:
    return Pool(1)


def in_line(pool: Pool, count: int) -> None:
    wait_until(lambda: len(pool._queue) >= count, "they stand in line")


def test_many_threads_share_one_connection_and_none_is_passed_over(one: Pool) -> None:
    first = one.take(SOON)
    served: list[int] = []

    def take(number: int) -> None:
        slot = one.take(SOON)
        assert slot is first
        served.append(number)
        one.give(slot)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for number, thread in enumerate(threads):
        thread.start()
        in_line(one, number + 1)
    one.give(first)
    for thread in threads:
        thread.join(10)
    assert served == list(range(8))


def test_a_connection_that_its_thread_has_lost_is_replaced(
    one: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_EVERY", 0.02)
    lost: list[Slot] = []
    dead = threading.Thread(target=lambda: lost.append(one.take(SOON)))
    dead.start()
    dead.join(10)
    second = one.take(SOON)
    assert second is not lost[0]
    third = one.take(SOON)  # this thread's own, which it can't be using
    assert third is not second
    one.give(second)
    assert list(one._idle) == [], "what was replaced is closed, and not used again"
    third.thread = None  # as an interrupt leaves it between two steps
    fourth = one.take(SOON)
    assert fourth is not third
    one.give(fourth)


def test_whoever_waits_for_a_connection_that_is_given_up_makes_another(one: Pool) -> None:
    broken = one.take(SOON)
    taken: list[Slot] = []
    thread = threading.Thread(target=lambda: taken.append(one.take(SOON)))
    thread.start()
    in_line(one, 1)
    begun = time.monotonic()
    one.discard(broken)
    thread.join(10)
    assert time.monotonic() - begun < pools.LOOK_EVERY
    assert taken != [broken]
    one.give(taken[0])
