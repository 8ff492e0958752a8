"""etcd as a store: its calls, watches and users, and what `etcdctl` does to our keys."""

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
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import dibs
from dibs.errors import (
    BackendUnavailable,
    Corrupt,
    Forbidden,
    LeaseLost,
    NotConfigured,
)
from dibs.model import Acquire, Granted, Revoke, Revoked
from dibs.runtime.batcher import apply_over
from dibs.stores.cas.ledger import QUEUE_LIMIT
from dibs.stores.registry import store_for
from dibs.sync import Client, connect
from tests.servers.binaries import etcdctl_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.waiting import wait_until
from tests.stores.contending import contend


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


def _put(server: EtcdServer, key: str, value: str) -> None:
    said = {
        name: base64.b64encode(text.encode()).decode()
        for name, text in (("key", key), ("value", value))
    }
    server.call("kv/put", said)


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


# -- faults ------------------------------------------------------------------------------------------


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


@pytest.fixture(autouse=True, scope="module")
def _etcdctl() -> None:
    etcdctl_program()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of this test: its upkeep would slow others down."""
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def keys_of(url: str) -> str:
    """What the keys of locks begin with."""
    return f"{url.rpartition('/')[2]}/keys/lock:"


def compact(server: EtcdServer) -> None:
    header = json.loads(server.ctl("get", "any", "--write-out", "json"))["header"]
    server.ctl("compact", str(header["revision"]))


def grant(server: EtcdServer) -> str:
    """An etcd lease, which ends with what is attached to it."""
    return server.ctl("lease", "grant", "600").split()[1]


def attach(server: EtcdServer, key: str) -> str:
    """Attach a key to an etcd lease, and return that."""
    lease = grant(server)
    value = server.ctl("get", "--print-value-only", key).strip()
    server.ctl("put", key, value, "--lease", lease)
    return lease


@pytest.mark.once
@pytest.mark.multiprocess
def test_upkeep_leaves_one_holder_at_a_time(own_server: EtcdServer, tmp_path: Path) -> None:
    url = f"etcd://127.0.0.1:{own_server.port}/dibs"
    key = "dibs/keys/lock:contended"
    doings: dict[str, Callable[[], object]] = {
        "get": lambda: own_server.ctl("get", "--prefix", "dibs/"),
        "compact": lambda: compact(own_server),
        "defrag": lambda: own_server.ctl("defrag"),
        "snapshot": lambda: own_server.ctl("snapshot", "save", str(tmp_path / "snapshot.db")),
        "revoke": lambda: own_server.ctl("lease", "revoke", grant(own_server)),
        "lock": lambda: own_server.ctl("lock", key, "true"),
    }
    done: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as thread:
        cycles = thread.submit(contend, url, tmp_path, seconds=2.5, processes=3)
        for name, do in cycle(doings.items()):
            if cycles.done():
                break
            do()
            done[name] += 1
        assert all(count > 0 for count in cycles.result())
    assert min(done[name] for name in doings) >= 2, done


def test_who_waits_is_served_after_a_compaction(own_server: EtcdServer) -> None:
    url = f"etcd://127.0.0.1:{own_server.port}"
    with connect(url) as holder, connect(url) as waiter:
        lease = holder.lock("a", ttl=60).acquire()
        got = threading.Event()

        def wait() -> None:
            with waiter.lock("a", ttl=60):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: watchers(own_server), "somebody waits")
        for _ in range(3):
            lease.renew()
            compact(own_server)
        own_server.ctl("defrag")
        wait_until(lambda: watchers(own_server) > 0, "somebody watches again")
        assert not got.is_set()
        lease.release()
        assert got.wait(30)
        thread.join()


@pytest.mark.once
def test_doctor_tells_that_no_old_revision_is_deleted(own_server: EtcdServer) -> None:
    """Else etcd would one day take no writes any more: not even renewals."""
    url = f"etcd://127.0.0.1:{own_server.port}"
    assert "history" not in findings(url)
    client = HTTPConnection("127.0.0.1", own_server.port)
    for _ in range(1001):
        client.request("POST", "/v3/kv/put", '{"key": "YQ==", "value": "YQ=="}')
        client.getresponse().read()
    client.close()
    assert findings(url)["history"]["level"] == "warning"
    compact(own_server)
    assert findings(url)["history"]["level"] == "ok"


@pytest.mark.once
def test_a_full_etcd_is_told_with_what_helps(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", extra=("--quota-backend-bytes=1000000",)) as server:
        own = f"etcd://127.0.0.1:{server.port}"
        value = b64encode(bytes(100_000)).decode()
        with pytest.raises(HTTPError):
            for _ in range(1000):
                server.call("kv/put", {"key": "YQ==", "value": value})
        with connect(own) as client, pytest.raises(BackendUnavailable, match="auto-compaction"):
            client.lock("a").acquire(wait=0)


def test_doctor_knows_the_server(etcd_url: str) -> None:
    found = str(findings(etcd_url))
    assert "has a leader" in found
    assert "the store dates its answers" in found


def findings(url: str) -> dict[str, Any]:
    """What `dibs doctor` reports, by its subjects."""
    done = subprocess.run(
        [sys.executable, "-m", "dibs", "doctor", "--json"],
        env=os.environ | {"DIBS_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    return {each["about"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_get_shows_who_holds(etcd_url: str, etcd_server: EtcdServer) -> None:
    with connect(etcd_url) as client, client.lock("a", note="by hand") as lease:
        text = etcd_server.ctl("get", "--print-value-only", f"{keys_of(etcd_url)}a")
        (entry,) = json.loads(text)["entries"]
        shown = entry["is"], entry["owner"], entry["token"], entry["note"]
        assert shown == ("hold", lease.owner, lease.token, "by hand")


def test_garbage_over_a_held_key_lets_nobody_in_until_it_is_deleted(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    key = f"{keys_of(etcd_url)}a"
    with connect(etcd_url) as client, connect(etcd_url) as other:
        lease = client.lock("a", ttl=3).acquire()
        etcd_server.ctl("put", key, "nonsense")
        for ask in (
            lambda: other.lock("a").acquire(wait=0),
            lambda: other.lock("a").acquire(wait=5),
            lambda: other.lock("a").status(),
            lease.renew,
        ):
            with pytest.raises(
                Corrupt, match=r"/keys/lock:a .* nobody holds it any more, then delete it"
            ):
                ask()
        assert lease.wait_lost(5)
        assert lease.reason == "expired"
        with pytest.raises(LeaseLost, match="nobody is granted this lock") as loss:
            lease.ensure()
        assert "another holder" not in str(loss.value)
        with pytest.raises(Corrupt):
            other.lock("a").acquire(wait=0)
        etcd_server.ctl("del", key)
        with other.lock("a") as second:
            assert second.token > lease.token
        assert not lease.release()


def test_a_key_that_ends_with_an_etcd_lease_is_a_deleted_one(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    key = f"{keys_of(etcd_url)}a"
    with connect(etcd_url) as client:
        lease = client.lock("a").acquire()
        attached = attach(etcd_server, key)
        lease.renew()  # which detaches it
        etcd_server.ctl("lease", "revoke", attached)
        lease.renew()
        assert client.lock("a").locked()
        etcd_server.ctl("lease", "revoke", attach(etcd_server, key))
        with pytest.raises(LeaseLost):
            lease.renew()
