"""etcd as a store: its calls, watches, members and users, and what fills it."""

import json
import re
import time
import urllib.request
from base64 import b64encode
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx2
import pytest

import dibs
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.model import Acquire, Granted, Queued, Refused, Revoke, Revoked
from dibs.runtime.batcher import apply_over
from dibs.stores.cas.ledger import QUEUE_LIMIT
from dibs.stores.registry import store_for
from dibs.sync import connect
from tests.servers.certificates import key_of, self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.waiting import wait_until
from tests.stores.sides import findings, use, waiting

pytestmark = pytest.mark.once


def metrics(server: EtcdServer) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def calls(server: EtcdServer) -> int:
    """Number of transactions and reads that the server has answered."""
    counts = re.findall(
        r'grpc_server_handled_total\{[^}]*grpc_method="(?:Txn|Range)"[^}]*\} (\S+)', metrics(server)
    )
    return int(sum(map(float, counts)))


def watchers(server: EtcdServer) -> int:
    """Number of watches that the server has."""
    return int(metrics(server).partition("\netcd_debugging_mvcc_watcher_total ")[2].split()[0])


def put(server: EtcdServer, key: str, value: str) -> None:
    texts = {"key": key, "value": value}
    server.call("kv/put", {each: b64encode(texts[each].encode()).decode() for each in texts})


def test_a_cycle_is_two_calls_and_a_renewal_is_one(etcd_url: str, etcd_server: EtcdServer) -> None:
    with connect(etcd_url) as client:
        client.lock("a").acquire().release()
        before = calls(etcd_server)
        for _ in range(10):
            client.lock("a").acquire().release()
        assert calls(etcd_server) - before == 20
        lease = client.lock("a").acquire()
        lease.renew()
        assert calls(etcd_server) - before == 22


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


def test_old_inboxes_are_deleted(etcd_url: str, etcd_server: EtcdServer) -> None:
    prefix = f"{etcd_url.rpartition('/')[2]}/inboxes/"
    for name, at in (("old", 0), ("older", 1), ("new", time.time())):
        put(etcd_server, f"{prefix}{name}", json.dumps({"at": at, "notifications": []}))

    def left() -> list[str]:
        return etcd_server.ctl("get", "--prefix", prefix, "--keys-only").split()

    with waiting(etcd_url):
        wait_until(lambda: left() == [f"{prefix}new"], "only the new one is left")


def test_a_queue_has_a_limit(etcd_url: str) -> None:
    connection = store_for(etcd_url).blocking_connection()
    connection.open(5)
    ids = [f"{number:032x}" for number in range(QUEUE_LIMIT + 2)]
    replies = connection.apply([Acquire(b"lock:a", each, "o", 30, queue=True) for each in ids], 10)
    assert all(isinstance(reply, Queued) for reply in replies[1:-1])
    assert isinstance(replies[-1], Refused)
    assert replies[-1].reason == "queue_full"
    connection.close()


def test_members_that_hang_or_die_cost_time_only(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        leader = cluster.leader()
        first, second, _ = sorted(cluster.members, key=lambda member: member is leader)
        with waiting(f"etcd://127.0.0.1:{first.port},127.0.0.1:{second.port}"):
            wait_until(lambda: watchers(first), "the waiter watches at the first member")
            first.pause()
            wait_until(lambda: watchers(second), "it watches at the next one")
            first.resume()

        others = [member for member in cluster.members if member is not first]
        with waiting(f"etcd://127.0.0.1:{first.port}"):
            wait_until(lambda: watchers(first), "the waiter watches")
            for member in others:
                member.pause()
            wait_until(lambda: watchers(first) == 0, "without a quorum its watch ends")
            for member in others:
                member.resume()
            wait_until(lambda: watchers(first), "it watches again")

        hosts = ",".join(f"127.0.0.1:{member.port}" for member in cluster.members)
        with connect(f"etcd://{hosts}") as client:
            lease = client.lock("b", ttl=15).acquire(wait=10)
            cluster.leader().kill()
            client.lock("c", wait=10).acquire().release()
            lease.renew()
            lease.release()


def test_users_and_wrong_passwords(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        server.enable_auth("s:cret/1")
        place = f"127.0.0.1:{server.port}"
        with connect(f"etcd://root:s%3Acret%2F1@{place}") as client:
            client.lock("a").acquire().release()
            server.restart()  # which makes all tokens invalid
            client.lock("a").acquire().release()
        with pytest.raises(Forbidden, match="does not accept the user 'root'") as refusal:
            use(f"etcd://root:secret9@{place}")
        assert "secret9" not in str(refusal.value)
        with pytest.raises(Forbidden, match="etcd://user:password@host"):
            use(f"etcd://{place}")


async def test_roles_may_change_while_clients_run(tmp_path: Path) -> None:
    """With JSON Web Tokens, each change makes all tokens invalid, for calls and for watches."""
    key = self_signed(tmp_path / "jwt.pem")
    tokens = f"jwt,pub-key={key},priv-key={key_of(key)},sign-method=ES256,ttl=10m"
    with EtcdServer(tmp_path / "etcd", extra=["--auth-token", tokens]) as server:
        server.enable_auth("secret")

        def change_roles(name: str) -> None:
            user = {"name": "root", "password": "secret"}
            token = server.call("auth/authenticate", user)["token"]
            server.call("auth/role/add", {"name": name}, token=token)

        url = f"etcd://root:secret@127.0.0.1:{server.port}"
        connection = store_for(url).async_connection()
        await connection.open()
        change_roles("for a watch")
        await connection.subscribe(lambda _: None)
        assert watchers(server) == 1
        await connection.close()
        async with dibs.connect(url) as client:
            lease = await client.lock("a").acquire()
            change_roles("for a transaction")
            assert await lease.release()


def test_a_member_without_the_gateway_says_so(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, extra=["--enable-grpc-gateway=false"]) as server:
        with pytest.raises(NotConfigured, match="--enable-grpc-gateway"):
            use(f"etcd{server.url[4:]}")


def compact(server: EtcdServer) -> None:
    header = json.loads(server.ctl("get", "any", "--write-out", "json"))["header"]
    server.ctl("compact", str(header["revision"]))


def test_upkeep_leaves_leases_and_waiters_alone(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd") as server:
        ctl, url = server.ctl, f"etcd://127.0.0.1:{server.port}/dibs"
        with waiting(url):
            ctl("get", "--prefix", "dibs/")
            compact(server)
            ctl("defrag")
            ctl("snapshot", "save", str(tmp_path / "snapshot.db"))
            ctl("lease", "revoke", ctl("lease", "grant", "600").split()[1])
            ctl("lock", "dibs/keys/lock:a", "true")


def test_old_revisions_that_nobody_deletes_fill_etcd(tmp_path: Path) -> None:
    """Then it takes no writes, not even renewals. `dibs doctor` warns in time."""
    key, large = b64encode(b"a").decode(), b64encode(bytes(100_000)).decode()
    with EtcdServer(tmp_path, extra=("--quota-backend-bytes=1000000",)) as server:
        url = f"etcd://127.0.0.1:{server.port}"
        with closing(HTTPConnection("127.0.0.1", server.port)) as gateway:
            for _ in range(1001):
                gateway.request("POST", "/v3/kv/put", json.dumps({"key": key, "value": key}))
                gateway.getresponse().read()
        assert findings(url)["history"].level == "warning"
        compact(server)
        assert findings(url)["history"].level == "ok"
        with pytest.raises(httpx2.HTTPStatusError):
            for _ in range(1000):
                server.call("kv/put", {"key": key, "value": large})
        with pytest.raises(BackendUnavailable, match="auto-compaction"):
            use(url)
