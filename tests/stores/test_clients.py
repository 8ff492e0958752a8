"""Clients of every store through outages, forks and kills: what they hold stays, who waits is served."""

import asyncio
import gc
import os
import re
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.core.timing import claim_timeout
from dibs.errors import AcquireTimeout, BackendUnavailable
from dibs.sync import connect
from dibs.testing import FaultProxy
from tests.servers.waiting import wait_until
from tests.stores.places import Place, own_server
from tests.stores.sides import Side, findings, forked, in_child, on, waiting

pytestmark = pytest.mark.once

LONG = 20.0
"""Seconds within which what must happen happens, on a busy machine too."""


@pytest.fixture
def name() -> str:
    return secrets.token_hex(6)


async def wait_for(side: Side, client: Any, name: str, observer: Any) -> Any:
    """Start to wait for a lock, and return when that stands in the queue."""
    started = side.start(lambda: client.lock(name, ttl=10, wait=60).acquire())

    async def waits() -> bool:
        return bool((await side.get(observer.status(name))).waiting)

    await side.until(waits)
    return started


@pytest.mark.parametrize(
    "store", ["kubernetes", "nats", "s3", "http", pytest.param("temporal", marks=pytest.mark.long)]
)
def test_a_killed_server_comes_back_with_its_leases(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Redis, PostgreSQL and etcd are killed in `tests/torture`, again and again."""
    with (
        own_server(store, tmp_path, request) as (server, url),
        connect(url, call_timeout=1) as client,
        waiting(url) as held,
    ):
        server.kill()
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, AcquireTimeout)):
            client.lock("b").acquire(wait=0.2)
        assert time.monotonic() - began < 5
        server.start()
        wait_until(lambda: renewed(held), "the server answers", within=LONG)
        with connect(url) as another:
            assert another.lock("a").locked()


def renewed(lease: dibs.sync.Lease) -> bool:
    try:
        lease.renew()
    except BackendUnavailable:
        return False
    return True


@on("redis", "postgres", "http", "etcd", "kubernetes", "nats")
async def test_who_waits_is_served_after_a_cut(
    side: Side, place: Place, way: tuple[FaultProxy, str], name: str
) -> None:
    """Its notification is lost with the connection: it asks again once it listens again."""
    proxy, url = way
    holder, client = side.connect(place.url), side.connect(url)
    held = await side.get(holder.lock(name, ttl=60).acquire())
    waiting = await wait_for(side, client, name, holder)
    await side.pause(0.2)  # it listens by now
    proxy.cut()
    await side.get(held.release())
    lease = await side.end(waiting, 5)
    assert lease.token > held.token
    await side.get(lease.release())


@on("redis", "postgres", "etcd", "kubernetes", "nats")
async def test_an_answer_that_is_lost_costs_no_lease(
    side: Side, place: Place, way: tuple[FaultProxy, str], name: str
) -> None:
    """The acquire was applied: its id is the holder when it asks again."""
    proxy, url = way
    client, other = side.connect(url), side.connect(place.url)
    await side.get((await side.get(client.lock(name).acquire())).release())
    proxy.drop_replies()
    acquiring = side.start(client.lock(name, ttl=3, wait=LONG).acquire)

    async def is_applied() -> Any:
        return (await side.get(other.status(name))).holders

    await side.until(is_applied)
    [holder] = await is_applied()
    proxy.heal()
    lease = await side.end(acquiring)
    assert lease.token == holder.token
    await side.get(lease.release())
    assert not await side.get(other.lock(name).locked())


@pytest.mark.parametrize("fault", ["cut", "hang"])
@pytest.mark.parametrize("place", ["nats", "http"], indirect=True)
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


@pytest.mark.parametrize(
    "place",
    [
        *("sqlite", "nats"),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("etcd", "kubernetes", "s3")),
    ],
    indirect=True,
)
def test_a_lone_try_gets_a_dead_holders_lease(place: Place, name: str, tmp_path: Path) -> None:
    """Also on a store without a clock: each client is new, and has watched for no time at all.

    All of these go by the dates of answers in one way, and `HEALTHY` shows that each has them.
    """
    url, skew, told = place.url, 0.2, tmp_path / "token"
    ttl = 12.0 if url.startswith("s3") else 2.0  # a sixth of it is the limit of a call
    if not url.startswith("sqlite"):
        url += f"{'&' if '?' in url else '?'}skew={skew}"

    def die_with_it() -> None:
        lease = connect(url).lock(name, ttl=ttl).acquire()
        told.write_text(str(lease.token))
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(die_with_it, ends=-signal.SIGKILL)
    killed, refused = time.monotonic(), 0
    while True:
        with connect(url) as client:
            client.lock("another").status()  # it connects, for which a try has one second only
            lease = client.lock(name, ttl=30).try_acquire()
            if lease is not None:
                break
        refused += 1
        assert time.monotonic() < killed + ttl + skew + 4
        time.sleep(0.1)
    assert refused, "the lease was still trusted at first"
    assert lease.token > int(told.read_text())


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in ("redis", "postgres"))],
    indirect=True,
)
def test_any_number_of_killed_waiters_costs_two_claim_timeouts(place: Place) -> None:
    ttl = 4.0

    def wait_in_line() -> None:
        client = connect(place.url)
        for _ in range(10):
            wait = client.lock("x", ttl=ttl).acquire
            threading.Thread(target=wait, daemon=True).start()
        signal.alarm(120)
        signal.pause()

    with connect(place.url) as client:
        held = client.lock("x", ttl=60).acquire()
        doomed = [forked(wait_in_line) for _ in range(2)]
        try:
            wait_until(lambda: client.status("x").waiting == 20, "all wait")
        finally:
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        held.release()
        began = time.monotonic()
        with client.lock("x", ttl=ttl, wait=60):  # one after the other they would cost a minute
            assert time.monotonic() - began < 5 * claim_timeout(ttl)


@pytest.mark.parametrize("place", ["redis", "postgres", "http", "nats"], indirect=True)
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


HEALTHY = {
    "etcd": [
        "etcd 3.* has a leader",
        "quorum",
        "all members are on this machine",
        "dates its answers",
    ],
    "http": [
        "scopes acquire",
        "use a ttl of at least 1 s",
        "1 to 86400 seconds",
        "is this machine",
    ],
    "kubernetes": ["is Kubernetes v", "dates its answers", "the API server is on this machine"],
    "nats": [r"NATS \d+\.\d+\.\d+", "dates its answers", "the server is on this machine"],
    "s3": ["refuses writes whose condition fails", "dates its answers"],
    "temporal": [r"Temporal 1\.", "a worker serves the task queue", "development server"],
}


@pytest.mark.parametrize("place", HEALTHY, indirect=True)
def test_doctor_knows_a_healthy_server(place: Place, request: pytest.FixtureRequest) -> None:
    found = findings(place.url)
    assert "problem" not in {each.level for each in found.values()}
    for told in HEALTHY[request.node.callspec.params["place"]]:
        assert re.search(told, str(found))
