"""etcd as a store: what is asked of the server, its faults, its users, and what others find in it."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import dibs
from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Corrupt,
    Forbidden,
    IncompatibleVersion,
    NotConfigured,
)
from dibs.model import Acquire, Granted, Revoke, Revoked
from dibs.runtime.batcher import apply_over
from dibs.stores.cas.ledger import QUEUE_LIMIT
from dibs.stores.registry import store_for
from dibs.sync import Client, connect
from dibs.testing import FaultProxy
from tests.servers.certificates import key_of, self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.waiting import wait_until
from tests.stores.cas_processes import killed_holder


def try_once(url: str) -> None:
    """One try to acquire the lock `a`."""
    with connect(url) as client:
        client.lock("a").acquire(wait=0)


def calls(server: EtcdServer) -> int:
    """How many calls the server has answered, but for watches."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    counts = re.findall(
        r'grpc_server_handled_total\{[^}]*grpc_method="(?:Txn|Range)"[^}]*\} (\S+)', text
    )
    return int(sum(map(float, counts)))


def watchers(server: EtcdServer) -> int:
    """How many watches the server has."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return int(text.partition("\netcd_debugging_mvcc_watcher_total ")[2].split()[0])


@contextmanager
def waiting(client: Client, name: str) -> Iterator[None]:
    """Somebody waits for a lock meanwhile, which another one holds; until it gets that afterwards."""

    def wait() -> None:
        with suppress(dibs.DibsError), client.lock(name, ttl=60):
            """Got it."""

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield


def test_an_uncontended_cycle_is_two_calls(etcd_url: str, etcd_server: EtcdServer) -> None:
    with connect(etcd_url) as client:
        client.lock("a").acquire().release()
        before = calls(etcd_server)
        for _ in range(10):
            client.lock("a").acquire().release()
        assert calls(etcd_server) - before == 20


def test_a_renewal_is_one_call_and_so_is_the_release_after_it(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    """Leases are renewed in another event loop than the one that acquires and releases."""

    async def main() -> None:
        async with dibs.connect(etcd_url) as client:
            lease = await client.lock("a", ttl=1.5).acquire()
            await asyncio.sleep(0.7)  # with the first renewal the other one has connected
            before = calls(etcd_server)
            await asyncio.sleep(1.6)  # a renewal each half second
            renewals = calls(etcd_server) - before
            assert 2 <= renewals <= 4
            await lease.release()
            assert calls(etcd_server) - before <= renewals + 2, "one more may have been due"

    asyncio.run(main())


def test_who_waits_sends_heartbeats_and_no_more(etcd_url: str, etcd_server: EtcdServer) -> None:
    with connect(etcd_url) as holder, connect(etcd_url) as waiter:
        lease = holder.lock("a", ttl=60).acquire()
        got = threading.Event()

        def wait() -> None:
            with waiter.lock("a", ttl=60):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not got.wait(1), "it has its place, and an inbox"
        before = calls(etcd_server)
        assert not got.wait(3.5)
        assert calls(etcd_server) - before <= 3, "a heartbeat each 1.7 s"
        lease.release()
        assert got.wait(5)
        thread.join()


async def test_more_clients_are_notified_than_a_transaction_takes(etcd_url: str) -> None:
    connection = store_for(etcd_url).async_connection()
    await connection.open()
    key = b"semaphore:a"
    holds = [
        Acquire(key, f"{n:032x}", "o", 60.0, capacity=200, inbox=f"inbox-{n}") for n in range(130)
    ]
    granted = await apply_over(connection, holds)
    assert all(isinstance(reply, Granted) for reply in granted)
    await connection.subscribe(lambda _: None)
    (revoked,) = await apply_over(connection, [Revoke(key, None, "all of them", now=True)])
    assert isinstance(revoked, Revoked)
    assert revoked.count == 130
    await connection.close()


def test_old_inboxes_are_deleted_in_one_call(etcd_url: str, etcd_server: EtcdServer) -> None:
    prefix = f"{etcd_url.rpartition('/')[2]}/inboxes/"
    for number in range(50):
        _put(etcd_server, f"{prefix}{number}", json.dumps({"at": 0, "notifications": []}))
    _put(etcd_server, f"{prefix}new", json.dumps({"at": time.time(), "notifications": []}))

    def left() -> int:
        key, end = (base64.b64encode(raw.encode()).decode() for raw in (prefix, prefix[:-1] + "0"))
        return int(etcd_server.call("kv/range", {"key": key, "range_end": end})["count"])

    with connect(etcd_url) as holder, connect(etcd_url) as waiter, holder.lock("a"):
        before, asked = calls(etcd_server), 0
        with waiting(waiter, "a"):
            while left() > 1:
                asked += 1
                assert asked < 1000
            assert calls(etcd_server) - before - asked < 15
            assert left() == 1, "somebody may still read the new one"


@pytest.mark.once
def test_a_lone_try_gets_what_a_dead_process_held(etcd_url: str) -> None:
    """Each of these processes looks once, and has watched for no time at all."""
    url, ttl, skew = f"{etcd_url}?skew=1", 2.0, 1.0
    killed_holder(url, "cron", ttl)
    killed, tries = time.monotonic(), 0
    dibs_run = [
        sys.executable,
        *["-m", "dibs", "run", "cron", "--wait", "0", "--ttl", "2", "--", "true"],
    ]
    while True:
        tries += 1
        done = subprocess.run(
            dibs_run, env={**_env(), "DIBS_URL": url}, capture_output=True, check=False
        )
        if done.returncode == 0:
            break
        assert time.monotonic() < killed + ttl + skew + 3, done.stderr
    assert tries > 1, "the lease was still trusted at first"


def _env() -> dict[str, str]:
    return dict(os.environ)


def test_a_key_deleted_by_hand_begins_with_the_date_again(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    """Not with 1: only what was granted within the last seconds can have had a higher token."""
    prefix = etcd_url.rpartition("/")[2]
    with connect(etcd_url) as client:
        first = client.lock("a").acquire()
        first.release()
        _delete(etcd_server, f"{prefix}/keys/lock:a")
        with client.lock("a") as second:
            assert abs(second.token - first.token) < 30_000_000


def test_a_lease_whose_key_somebody_deletes_is_lost(etcd_url: str, etcd_server: EtcdServer) -> None:
    prefix = etcd_url.rpartition("/")[2]
    with connect(etcd_url) as client:
        lease = client.lock("a", ttl=1).acquire()
        _delete(etcd_server, f"{prefix}/keys/lock:a")
        assert lease.wait_lost(5)


def _delete(server: EtcdServer, key: str) -> None:
    server.call("kv/deleterange", {"key": base64.b64encode(key.encode()).decode()})


def _put(server: EtcdServer, key: str, value: str) -> None:
    said = {
        name: base64.b64encode(text.encode()).decode()
        for name, text in (("key", key), ("value", value))
    }
    server.call("kv/put", said)


@pytest.mark.parametrize(
    ("value", "error"),
    [("nonsense", Corrupt), ('{"format": 1}', Corrupt), ('{"format": 99}', IncompatibleVersion)],
)
def test_what_is_no_book_grants_nothing(
    etcd_url: str, etcd_server: EtcdServer, value: str, error: type[Exception]
) -> None:
    key = f"{etcd_url.rpartition('/')[2]}/keys/lock:a"
    _put(etcd_server, key, value)
    with connect(etcd_url) as client:
        with pytest.raises(error, match=f"in etcd under the key {key} "):
            client.lock("a").acquire(wait=0)
        with client.lock("b"):
            """Other keys are well."""


def test_what_is_no_book_is_left_out_of_lists(etcd_url: str, etcd_server: EtcdServer) -> None:
    _put(etcd_server, f"{etcd_url.rpartition('/')[2]}/keys/lock:a", "nonsense")
    with connect(etcd_url) as client, client.lock("b"):
        assert [status.name for status in client.list()] == [b"b"]


def test_a_queue_has_a_limit(etcd_url: str) -> None:
    from dibs.model import Acquire, Queued, Refused

    connection = store_for(etcd_url).blocking_connection()
    connection.open(5)
    try:
        ids = [f"{number:032x}" for number in range(QUEUE_LIMIT + 2)]
        commands = [Acquire(b"lock:a", each, "o", 30, queue=True) for each in ids]
        replies = connection.apply(commands, 10)
        assert all(isinstance(reply, Queued) for reply in replies[1:-1])
        assert isinstance(replies[-1], Refused)
        assert replies[-1].reason == "queue_full"
    finally:
        connection.close()


def test_a_key_that_is_full_takes_no_more_and_serves_who_is_in_it(etcd_url: str) -> None:
    from dibs.model import Acquire, Granted, Refused, Release, Released

    connection = store_for(etcd_url).blocking_connection()
    connection.open(5)
    note = "x" * 60_000
    try:
        replies: list[object] = []
        for number in range(20):
            command = Acquire(b"semaphore:a", f"{number:032x}", "o", 30, capacity=100, note=note)
            replies += connection.apply([command], 10)
        granted = [reply for reply in replies if isinstance(reply, Granted)]
        full = [reply for reply in replies if isinstance(reply, Refused)]
        assert len(granted) + len(full) == 20
        assert 10 < len(granted) < 18
        assert {reply.reason for reply in full} == {"queue_full"}
        assert connection.apply([Release(b"semaphore:a", "0" * 32)], 10) == [Released()]
    finally:
        connection.close()


# -- faults ------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", etcd_server.port) as proxy:
        yield proxy


def test_a_waiter_is_served_after_its_watch_was_cut(etcd_url: str, proxy: FaultProxy) -> None:
    with connect(etcd_url) as holder, connect(proxy.url_for(etcd_url)) as waiter:
        lease = holder.lock("a").acquire()
        got = threading.Event()

        def wait() -> None:
            with waiter.lock("a", ttl=3):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: holder.lock("a").status().waiters, "somebody waits")
        proxy.cut()
        lease.release()
        assert got.wait(5)
        thread.join()


def test_an_answer_that_is_lost_costs_no_lease(etcd_url: str, proxy: FaultProxy) -> None:
    """The swap was applied, and nobody was told: the id is its own when it asks again."""
    with connect(proxy.url_for(etcd_url)) as client:
        client.lock("a").acquire().release()
        proxy.drop_replies()
        threading.Timer(0.3, proxy.heal).start()
        with client.lock("a", ttl=3) as lease:
            assert lease.token
        assert not client.lock("a").locked()


def test_a_server_that_restarts_keeps_its_leases(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, fsync=True) as server, connect(f"etcd{server.url[4:]}") as client:
        lease = client.lock("a", ttl=20).acquire()
        server.kill()
        with pytest.raises((BackendUnavailable, AcquireTimeout)):
            client.lock("b").acquire(wait=0.2)
        server.start()
        lease.renew()
        with pytest.raises(AcquireTimeout):
            try_once(f"etcd{server.url[4:]}")
        assert lease.release()


@pytest.mark.once
def test_a_watch_leaves_a_member_that_hangs(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        leader = cluster.leader()
        first, second, _ = sorted(cluster.members, key=lambda member: member is leader)
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in (first, second))
        with (
            connect(f"etcd://127.0.0.1:{leader.port}") as holder,
            connect(f"etcd://{hosts}") as waiter,
            holder.lock("a", ttl=60),
            waiting(waiter, "a"),
        ):
            wait_until(lambda: watchers(first), "the waiter watches")
            assert not watchers(second)
            first.pause()
            wait_until(lambda: watchers(second), "it watches at another member")


@pytest.mark.once
def test_a_watch_leaves_a_member_that_has_lost_its_leader(tmp_path: Path) -> None:
    """It answers, and hears of nothing."""
    with EtcdCluster(tmp_path) as cluster:
        first, *others = cluster.members
        with (
            connect(f"etcd://127.0.0.1:{first.port}") as client,
            client.lock("a", ttl=60),
            waiting(client, "a"),
        ):
            wait_until(lambda: watchers(first), "the waiter watches")
            for member in others:
                member.pause()
            wait_until(lambda: watchers(first) == 0, "its watch ends")
            for member in others:
                member.resume()
            wait_until(lambda: watchers(first), "it watches again")


@pytest.mark.once
def test_a_cluster_goes_on_without_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in cluster.members)
        with connect(f"etcd://{hosts}") as client:
            lease = client.lock("a", ttl=15).acquire()
            cluster.leader().kill()
            with client.lock("b", wait=10):
                """Another member has become the leader."""
            lease.renew()
            lease.release()


# -- users, TLS, URLs --------------------------------------------------------------------------------


def test_users_and_wrong_passwords(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        server.enable_auth("s:cret/1")
        place = f"127.0.0.1:{server.port}"
        with connect(f"etcd://root:s%3Acret%2F1@{place}") as client:
            with client.lock("a"):
                """Let in."""
            server.restart()  # which makes all tokens invalid
            with client.lock("a"):
                """With a new one."""
        with pytest.raises(Forbidden, match="does not accept the user 'root'") as refusal:
            try_once(f"etcd://root:secret9@{place}")
        assert "secret9" not in str(refusal.value)
        with pytest.raises(Forbidden, match="etcd://user:password@host"):
            try_once(f"etcd://{place}")


@pytest.fixture
def jwt_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """Its tokens are too old after each change of users or roles."""
    key = self_signed(tmp_path / "jwt.pem")
    tokens = f"jwt,pub-key={key},priv-key={key_of(key)},sign-method=ES256,ttl=10m"
    with EtcdServer(tmp_path / "etcd", extra=["--auth-token", tokens]) as server:
        server.enable_auth("secret")
        yield server


def _change_roles(server: EtcdServer) -> None:
    token = server.call("auth/authenticate", {"name": "root", "password": "secret"})["token"]
    server.call("auth/role/add", {"name": "another"}, token=token)


def test_roles_may_change_while_clients_run(jwt_server: EtcdServer) -> None:
    with connect(f"etcd://root:secret@127.0.0.1:{jwt_server.port}") as client:
        lease = client.lock("a").acquire()
        _change_roles(jwt_server)
        assert lease.release(), "a transaction is sent again with a new token"
        with client.lock("a"):
            """So is every other call."""


def test_a_watch_begins_though_roles_have_changed(jwt_server: EtcdServer) -> None:
    """etcd says of a watch that it refuses that it was created, too."""

    async def main() -> None:
        store = store_for(f"etcd://root:secret@127.0.0.1:{jwt_server.port}")
        connection = store.async_connection()
        await connection.open()
        _change_roles(jwt_server)
        await connection.subscribe(lambda _: None)
        assert watchers(jwt_server) == 1
        await connection.close()

    asyncio.run(main())


def test_a_member_without_the_gateway_says_so(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, extra=["--enable-grpc-gateway=false"]) as server:
        with pytest.raises(NotConfigured, match="--enable-grpc-gateway"):
            try_once(f"etcd{server.url[4:]}")


async def test_a_server_that_is_no_etcd_is_not_told_of_roles() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Who\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Forbidden, match="This is no answer of etcd") as refusal:
            async with dibs.connect(f"etcd://127.0.0.1:{port}"):
                pass
    assert "role" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("etcd://", "looks like etcd://"),
        ("etcd://host:99999", "no host:port"),
        ("etcd://user@host", "without a password"),
        ("etcd://host?cafile=ca.pem", "write etcds://"),
        ("etcds://host?keyfile=a.pem", "needs certfile="),
    ],
)
def test_a_url_that_is_wrong(url: str, said: str) -> None:
    with pytest.raises(NotConfigured, match=re.escape(said)):
        connect(url)


def test_nobody_there_is_told_within_the_wait() -> None:
    begun = time.monotonic()
    with pytest.raises((BackendUnavailable, AcquireTimeout), match="can't be reached"):
        try_once("etcd://127.0.0.1:1")
    assert time.monotonic() - begun < 5


def test_doctor_knows_the_server(etcd_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dibs", "doctor", "--json"],
        env={**_env(), "DIBS_URL": etcd_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "etcd" in done.stdout, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("has a leader" in str(each) for each in told)
    assert any("the store dates its answers" in str(each) for each in told)


def test_asyncio_too(etcd_url: str) -> None:
    async def main() -> None:
        async with dibs.connect(etcd_url) as client:
            async with client.lock("a") as lease:
                assert lease.token
            tasks = [asyncio.create_task(one(client)) for _ in range(20)]
            await asyncio.gather(*tasks)
            assert max(seen) == 1

    inside, seen = 0, []

    async def one(client: dibs.Client) -> None:
        nonlocal inside
        async with client.lock("shared", wait=10):
            inside += 1
            seen.append(inside)
            await asyncio.sleep(0)
            inside -= 1

    asyncio.run(main())
