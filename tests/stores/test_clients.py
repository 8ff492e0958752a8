"""Clients of every store through outages, forks and kills: what they hold stays, who waits is served."""

import asyncio
import gc
import os
import secrets
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.core.timing import claim_timeout
from dibs.errors import AcquireTimeout, BackendUnavailable
from dibs.sync import Client, connect
from dibs.testing import FaultProxy
from tests.servers.waiting import wait_until
from tests.stores.contending import contend, killed_holder
from tests.stores.places import Place, own_server, place_of

pytestmark = pytest.mark.once

LONG = 20.0
"""Seconds within which what must happen happens, on a busy machine too."""


def on(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", stores, indirect=True)


@pytest.fixture
def way(place: Place) -> Iterator[tuple[FaultProxy, str]]:
    """The way to the store through a proxy."""
    with place.proxied() as found:
        yield found


@pytest.fixture
def name() -> str:
    return secrets.token_hex(6)


class Waiter:
    """A thread that waits for a lock, and then releases it."""

    def __init__(self, client: Client, name: str, observer: Client) -> None:
        self._tokens: list[int] = []
        self._thread = threading.Thread(target=self._wait, args=(client, name))
        self._thread.start()
        wait_until(lambda: observer.status(name).waiting, "it waits")

    def _wait(self, client: Client, name: str) -> None:
        with client.lock(name, ttl=10, wait=60) as lease:
            self._tokens.append(lease.token)

    def token(self) -> int:
        self._thread.join(LONG)
        return self._tokens[0]


# ---- servers and networks that fail ---------------------------------------------------------------


@pytest.mark.parametrize(
    "store", ["redis", "postgres", "etcd", "kubernetes", "nats", "s3", "http", "temporal"]
)
def test_a_killed_server_comes_back_with_its_leases(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with own_server(store, tmp_path, request) as (server, url):
        with connect(url, call_timeout=1) as client, connect(url) as other:
            held = client.lock("a", ttl=60).acquire(wait=LONG)
            waiter = Waiter(other, "a", client)
            server.kill()
            began = time.monotonic()
            with pytest.raises((BackendUnavailable, AcquireTimeout)):
                client.lock("b").acquire(wait=0.2)
            assert time.monotonic() - began < 5
            server.start()
            renew(held)
            with connect(url) as new:
                assert new.lock("a").try_acquire() is None
            assert held.release()
            assert waiter.token() > held.token


def renew(lease: dibs.sync.Lease) -> None:
    """As soon as the server answers."""
    end = time.monotonic() + LONG
    while True:
        try:
            lease.renew()
        except BackendUnavailable:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


@on("redis", "postgres", "etcd", "kubernetes", "http")
def test_a_waiting_thread_is_served_after_a_cut(
    place: Place, way: tuple[FaultProxy, str], name: str
) -> None:
    """Its notification is lost with the connection: it asks again once it listens again."""
    proxy, url = way
    with connect(place.url) as holder, connect(url) as client:
        held = holder.lock(name, ttl=60).acquire()
        waiter = Waiter(client, name, holder)
        time.sleep(0.2)  # it listens by now
        proxy.cut()
        held.release()
        began = time.monotonic()
        assert waiter.token() > held.token
        assert time.monotonic() - began < 5


@on("redis", "postgres", "http", "nats")
async def test_a_waiting_task_is_served_after_a_cut(
    place: Place, way: tuple[FaultProxy, str], name: str
) -> None:
    proxy, url = way
    async with dibs.connect(place.url) as holder, dibs.connect(url) as client:
        held = await holder.lock(name).acquire()
        waiter = asyncio.create_task(client.lock(name).acquire(wait=30))
        while not (await holder.status(name)).waiting:
            await asyncio.sleep(0.01)
        proxy.cut()
        await held.release()
        async with asyncio.timeout(5):
            lease = await waiter
        assert lease.token > held.token
        await lease.release()


@on("redis", "postgres", "etcd", "kubernetes", "nats")
def test_an_answer_that_is_lost_costs_no_lease(way: tuple[FaultProxy, str], name: str) -> None:
    """The acquire was applied: its id is the holder when it asks again."""
    proxy, url = way
    with connect(url) as client:
        client.lock(name).acquire().release()
        proxy.drop_replies()
        threading.Timer(0.3, proxy.heal).start()
        with client.lock(name, ttl=3) as lease:
            assert lease.token
        assert not client.lock(name).locked()


@pytest.mark.parametrize("fault", ["cut", "hang"])
@on("redis", "nats", "http")
async def test_a_lease_is_kept_through_a_short_outage(
    way: tuple[FaultProxy, str], name: str, fault: str
) -> None:
    proxy, url = way
    async with dibs.connect(url) as client:
        async with client.lock(name, ttl=3) as lease:
            getattr(proxy, fault)()
            while lease.remaining > (2.2 if fault == "cut" else 1.8):  # then a renewal has failed
                await asyncio.sleep(0.02)
            in_outage = lease.remaining
            proxy.heal()
            async with asyncio.timeout(LONG):
                while lease.remaining <= in_outage:
                    lease.ensure()
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(LONG), client.lock(name):
            pass


# ---- processes ------------------------------------------------------------------------------------


@on("etcd", "kubernetes", "nats", "s3")
def test_a_lone_try_gets_a_dead_holders_lease(place: Place, name: str) -> None:
    """On a store without a clock: each client is new, and has watched for no time at all."""
    ttl, skew = 1.0, 0.2
    url = f"{place.url}{'&' if '?' in place.url else '?'}skew={skew}"
    token = killed_holder(url, name, ttl)
    killed, tries = time.monotonic(), 0
    while True:
        tries += 1
        with connect(url) as client:
            lease = client.lock(name, ttl=5).try_acquire()
            if lease is not None:
                assert lease.token > token
                break
        assert time.monotonic() < killed + ttl + skew + 4
        time.sleep(0.05)
    assert tries > 1, "the lease was still trusted at first"


@pytest.mark.multiprocess
@pytest.mark.parametrize(("store", "least"), [("nats", 5), ("s3", 2), ("http", 5), ("redis", 10)])
def test_processes_take_turns(
    store: str, least: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert sum(contend(place_of(store, request).url, tmp_path, seconds=1.5)) > least


WAITERS = """
import sys, threading, time
from dibs.sync import connect
client = connect(sys.argv[1])
for _ in range(10):
    threading.Thread(target=client.lock("x", ttl=float(sys.argv[2])).acquire, daemon=True).start()
time.sleep(600)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_any_number_of_killed_waiters_costs_two_claim_timeouts(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    if store != "sqlite":
        url = place_of(store, request).url
    ttl = 4.0
    with connect(url) as client:
        held = client.lock("x", ttl=60).acquire()
        command = [sys.executable, "-c", WAITERS, url, str(ttl)]
        dead = [subprocess.Popen(command) for _ in range(2)]
        try:
            wait_until(lambda: client.status("x").waiting == 20, "all wait")
        finally:
            for process in dead:
                process.kill()
                process.wait()
        held.release()
        began = time.monotonic()
        with client.lock("x", ttl=ttl, wait=60):  # one after the other they would cost a minute
            assert time.monotonic() - began < 5 * claim_timeout(ttl)


@on("redis", "postgres", "http", "nats", "s3")
def test_a_child_connects_for_itself(place: Place, name: str) -> None:
    with connect(place.url) as client:
        held = client.lock(name, ttl=60).acquire()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads
            child = os.fork()
        if not child:
            code = 1
            try:
                client.status(name)  # connecting may take longer than a try waits
                refused = client.lock(name).try_acquire() is None
                with client.lock(f"{name}-2", ttl=60):
                    code = 0 if refused and held.lost else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        held.renew()
        assert held.release()


# ---- loops and threads ----------------------------------------------------------------------------


@on("redis", "postgres", "http", "nats")
def test_loops_that_end_without_a_close_leave_nothing_open(place: Place, name: str) -> None:
    """Warnings of sockets that nobody has closed are errors here."""

    def tokens() -> list[int]:
        client = dibs.connect(place.url)

        async def cycle() -> int:
            async with client.lock(name) as lease:
                return lease.token

        return [asyncio.run(cycle()) for _ in range(3)]

    found = tokens()
    assert found == sorted(set(found))
    gc.collect()


@on("redis", "postgres", "etcd")
def test_threads_share_a_client(place: Place, name: str) -> None:
    inside, most = 0, 0
    with connect(place.url) as client:

        def use() -> None:
            nonlocal inside, most
            for _ in range(10):
                with client.lock(name, wait=LONG):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 1
