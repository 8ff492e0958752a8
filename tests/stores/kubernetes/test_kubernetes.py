"""Kubernetes as a store: what is asked of the server, its faults, and what others find in it."""

import asyncio
import json
import re
import threading
import time
import urllib.request
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

import dibs
from dibs.errors import AcquireTimeout, BackendUnavailable, Corrupt, Forbidden, NotConfigured
from dibs.model import Acquire, Finding, Granted, Lost, Renew
from dibs.stores.cas.clock import StoreClock
from dibs.stores.kubernetes.access import find_access
from dibs.stores.kubernetes.cells import KubernetesCells
from dibs.stores.kubernetes.objects import lease_name
from dibs.stores.kubernetes.watch import LeaseWatch
from dibs.stores.registry import store_for
from dibs.stores.web.client import WebClient
from dibs.stores.web.endpoint import WebServer
from dibs.sync import LeaderElection, connect
from tests.servers.kube import READER, STRANGER
from tests.servers.waiting import wait_until
from tests.stores.kubernetes.configs import Cluster
from tests.stores.kubernetes.proxies import HttpProxy

# -- what is asked -----------------------------------------------------------------------------------


def test_an_uncontended_cycle_is_two_calls(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        with connect(url) as client:
            client.lock("a").acquire().release()
            before = Counter(proxy.methods)
            for _ in range(10):
                client.lock("a").acquire().release()
            assert Counter(proxy.methods) - before == {"PUT": 20}
            lease = client.lock("a").acquire()
            before = Counter(proxy.methods)
            lease.renew()
            assert Counter(proxy.methods) - before == {"PUT": 1}


def test_who_waits_sends_heartbeats_and_no_more(cluster: Cluster) -> None:
    """Each is one PUT; after the holder has written, a GET and a PUT more."""
    with HttpProxy() as proxy:
        through = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        with connect(cluster.url) as holder, connect(through) as waiter:
            lease = holder.lock("a", ttl=60).acquire()
            got = threading.Event()

            def wait() -> None:
                with waiter.lock("a", ttl=60):
                    got.set()

            thread = threading.Thread(target=wait)
            thread.start()
            assert not got.wait(1), "it has its place, and a watch"
            before = Counter(proxy.methods)
            assert not got.wait(3.5)
            calls = Counter(proxy.methods) - before
            lease.release()
            assert got.wait(5)
            thread.join()
            handed = Counter(proxy.methods) - before - calls
    assert calls.keys() <= {"PUT", "GET"}
    assert calls["GET"] <= 1, "the holder has written once: where it can be notified"
    assert 2 <= calls["PUT"] - calls["GET"] <= 3, "a heartbeat each 1.7 s"
    assert handed.total() <= 5, "it was told, and did not ask again and again"


BUSY = b"HTTP/1.1 429 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
AWAY = b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n"


def test_a_busy_server_is_asked_again_when_it_says_so(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        with connect(url) as client:
            client.lock("a").acquire().release()
            proxy.answers += [BUSY]
            begun = time.monotonic()
            client.lock("a").acquire(wait=5).release()
            assert 1 <= time.monotonic() - begun < 3
            for answer, reason in ((BUSY, r"throttles .*\(429\)"), (AWAY, "503")):
                proxy.always = {"/leases": answer}
                with pytest.raises((BackendUnavailable, AcquireTimeout), match=reason):
                    client.lock("a").acquire(wait=1.5)


# -- what others see ---------------------------------------------------------------------------------


def test_kubectl_shows_who_holds(cluster: Cluster) -> None:
    with connect(cluster.url) as client:
        with client.lock("order:42", ttl=2.5, label="web") as lease:
            found = cluster.lease("dibs-lock.order-3a42")
            spec, metadata = found["spec"], found["metadata"]
            assert lease.owner.endswith("/web")
            assert re.fullmatch(rf"{lease.owner}_[0-9a-f]{{8}}", spec["holderIdentity"])
            assert spec["leaseDurationSeconds"] == 4, "client-go reads whole seconds only"
            assert spec["acquireTime"] == spec["renewTime"]
            assert spec.get("leaseTransitions", 0) == 0
            assert metadata["annotations"]["dibs/key"] == "lock:order:42"
            assert metadata["labels"]["app.kubernetes.io/managed-by"] == "dibs"
            lease.renew()
            later = cluster.lease("dibs-lock.order-3a42")["spec"]
            assert later["renewTime"] > spec["renewTime"]
            assert later["acquireTime"] == spec["acquireTime"]
        free = cluster.lease("dibs-lock.order-3a42")["spec"]
        assert (free["holderIdentity"], free["leaseDurationSeconds"]) == ("", 1)
        with client.lock("order:42"):
            assert cluster.lease("dibs-lock.order-3a42")["spec"]["leaseTransitions"] == 1
        with client.semaphore("pool", 3) as one, client.semaphore("pool", 3, label="b"):
            holder = cluster.lease("dibs-semaphore.pool")["spec"]["holderIdentity"]
            assert re.fullmatch(rf"{one.owner}_[0-9a-f]{{8}} and 1 more", holder)


def test_what_others_have_put_into_a_lease_stays(cluster: Cluster) -> None:
    with connect(cluster.url) as client:
        client.lock("a").acquire().release()
        found = cluster.lease("dibs-lock.a")
        found["metadata"]["annotations"]["team"] = "blue"
        found["metadata"]["labels"]["tier"] = "one"
        assert cluster.put(found).status == HTTPStatus.OK
        with client.lock("a"):
            metadata = cluster.lease("dibs-lock.a")["metadata"]
    assert metadata["annotations"]["team"] == "blue"
    assert metadata["labels"]["tier"] == "one"


def test_two_keys_never_share_a_lease() -> None:
    texts = [
        "a",
        "A",
        "a_b",
        "a-b",
        "a.b",
        "a--b",
        "a-2d",
        "a/b",
        ".a",
        "a.",
        "-",
        "x" * 300,
        "dibs-a",
    ]
    kinds = ("lock", "leader", "hash")
    keys = [f"{kind}:{text}".encode() for kind in kinds for text in texts]
    keys += [bytes([number]) * 2 for number in range(256)] + [
        b"lock:" + bytes([n]) for n in range(256)
    ]
    names = {lease_name(key) for key in keys}
    assert len(names) == len(set(keys))
    assert all(re.fullmatch(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", name) for name in names)
    assert not any(re.search(r"\.[.-]|-\.", name) for name in names)
    assert lease_name(b"leader:ecaf1259.my.domain") == "ecaf1259.my.domain"


def test_names_of_any_bytes_are_listed_in_their_order(cluster: Cluster) -> None:
    names = [b"a/b", b"a-b", b"a\xff", b"a", b"Z", "ä".encode(), b"a" * 400]
    with connect(cluster.url) as client:
        leases = [client.lock(name).acquire() for name in names]
        assert [each.name for each in client.list()] == sorted(names)
        key = cluster.lease(lease_name(b"lock:a\xff"))["metadata"]["annotations"]["dibs/key"]
        for lease in leases:
            lease.release()
    assert b64decode(key.removeprefix("base64:")) == b"lock:a\xff"


@pytest.mark.parametrize("value", ["lock:b", None, "base64:a"])
def test_a_lease_of_another_key_grants_nothing(cluster: Cluster, value: str | None) -> None:
    with connect(cluster.url) as client:
        client.lock("a").acquire().release()
        found = cluster.lease("dibs-lock.a")
        found["metadata"]["annotations"]["dibs/key"] = value
        if value is None:
            del found["metadata"]["annotations"]["dibs/key"]
        assert cluster.put(found).status == HTTPStatus.OK
        with pytest.raises(Corrupt, match="the Lease dibs-lock"):
            client.lock("a").acquire(wait=0)
        with client.lock("b"):  # other keys are well
            assert [each.key for each in client.list()] == [b"lock:b"]


def test_idle_leases_are_deleted_and_those_of_others_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("KEEP_IDLE", -5.0), ("SKEWS_IDLE", 0.0), ("SWEEP_EVERY", 8)):
        monkeypatch.setattr(f"dibs.stores.cas.ledger.{name}", value)
    made = {"metadata": {"name": "theirs"}, "spec": {"leaseDurationSeconds": 1}}
    cluster.server.request("POST", cluster.leases, made)

    async def main() -> None:
        async with dibs.connect(cluster.url) as client:
            async with dibs.LeaderElection("theirs", client=client), client.lock("held"):
                for _ in range(200):
                    async with client.lock("idle"):
                        """Comes and goes."""
                    await asyncio.sleep(0.01)
                    if "dibs-lock.gone" not in names():
                        break

    def names() -> set[str]:
        items = cluster.server.request("GET", cluster.leases).body["items"]
        return {each["metadata"]["name"] for each in items}

    with connect(cluster.url) as client:
        client.lock("gone").acquire().release()
    asyncio.run(main())
    assert "dibs-lock.gone" not in names()
    assert {"theirs", "dibs-lock.held"} <= names()


# -- faults ------------------------------------------------------------------------------------------


def test_a_watch_that_the_server_ends_begins_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after half an hour: who waits is served nevertheless."""
    starts: list[float] = []
    begin = LeaseWatch.begin

    async def begin_briefly(self: LeaseWatch) -> None:
        self._path = self._path.partition(b"&timeoutSeconds")[0] + b"&timeoutSeconds=1"
        starts.append(time.monotonic())
        await begin(self)

    monkeypatch.setattr(LeaseWatch, "begin", begin_briefly)

    async def main() -> None:
        async with dibs.connect(cluster.url) as holder, dibs.connect(cluster.url) as client:
            lease = await holder.lock("a", ttl=60).acquire()
            turn = asyncio.create_task(client.lock("a", ttl=60, wait=30).acquire())
            while len(starts) < 3:
                await asyncio.sleep(0.05)
            await lease.release()
            await (await asyncio.wait_for(turn, 5)).release()

    asyncio.run(main())


async def test_a_server_that_begins_no_watch_is_told(cluster: Cluster) -> None:
    """It takes the connection, and hangs: also the next try is made, and fails likewise."""
    access = find_access(cluster.namespace, cluster.url.rpartition("=")[2], "")
    cells = KubernetesCells(cluster.url, access, StoreClock(), time.monotonic, {})

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = WebServer("127.0.0.1", port, None, 0.2)
        cells.api.client = WebClient(endpoint, time.monotonic, StoreClock().note)
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="did not begin a watch in time"):
                await cells.subscribe("inbox", lambda _: None)
        await cells.close()


def test_a_watch_that_has_failed_is_reported(cluster: Cluster) -> None:
    """As when the server has forgotten the version to go on from."""
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n'
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    async def main(url: str) -> Any:
        access = find_access(cluster.namespace, url.rpartition("=")[2], "")
        cells = KubernetesCells(url, access, StoreClock(), time.monotonic, {})
        told: asyncio.Queue[Any] = asyncio.Queue()
        await cells.subscribe("inbox", told.put_nowait)
        error = await asyncio.wait_for(told.get(), 5)
        (await cells.subscribe("inbox", told.put_nowait))()
        await cells.close()
        await asyncio.sleep(0)  # so that the sockets are closed
        return error

    with HttpProxy() as proxy:
        proxy.answers.append(b"%b%x\r\n%b\r\n" % (head, len(gone), gone))
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        error = asyncio.run(main(url))
    assert isinstance(error, BackendUnavailable)
    assert "too old" in str(error)


def test_nobody_there_is_told_within_the_wait(cluster: Cluster) -> None:
    begun = time.monotonic()
    with pytest.raises((BackendUnavailable, AcquireTimeout), match="can't be reached"):
        with connect(cluster.url_for("http://127.0.0.1:1")) as client:
            client.lock("a").acquire(wait=0)
    assert time.monotonic() - begun < 5


# -- users -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (READER, "no right to create Leases"),
        (STRANGER, "no right to get Leases"),
        ("secret9", "does not know who we are"),
    ],
)
def test_users_without_rights(cluster: Cluster, token: str, said: str) -> None:
    with connect(cluster.url_for(cluster.server, user={"token": token})) as client:
        with pytest.raises(Forbidden, match=said) as refusal:
            client.lock("a").acquire(wait=0)
    assert ("kubernetes-rbac.yaml" in str(refusal.value)) == (token != "secret9")
    assert "secret9" not in str(refusal.value)


def examine(url: str) -> dict[str, Finding]:
    async def ask() -> dict[str, Finding]:
        connection = store_for(url).async_connection()
        try:
            return {each.about: each for each in await connection.examine()}
        finally:
            await connection.close()

    return asyncio.run(ask())


def refused(code: int, message: str, kind: str = "leases") -> bytes:
    """An answer of an API server."""
    said = {"kind": "Status", "code": code, "message": message, "details": {"kind": kind}}
    body = json.dumps(said).encode()
    return b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%b" % (code, len(body), body)


def test_doctor_knows_the_server_and_what_is_lacking(cluster: Cluster) -> None:
    found = examine(cluster.url)
    assert {each.level for each in found.values()} == {"ok"}, found
    assert "is Kubernetes v" in found["server"].told
    assert found["encryption"].told == "none needed: the API server is on this machine"
    assert "dates its answers" in found["dates"].told
    assert not cluster.server.request("GET", cluster.leases).body["items"], "it has left nothing"
    rights = examine(cluster.url_for(cluster.server, user={"token": READER}))["rights"]
    assert rights.level == "problem"
    assert "no create, update, delete on Leases" in rights.told


def test_a_namespace_that_does_not_exist(cluster: Cluster) -> None:
    """A server finds that when a Lease is to be made."""
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        proxy.always = {"POST": refused(404, 'namespaces "x" not found', "namespaces")}
        found = examine(url)
        with connect(url) as client:
            with pytest.raises(NotConfigured, match=r'"x" not found: check that the namespace'):
                client.lock("a").acquire(wait=0)
    assert (found["namespace"].level, found["rights"].level) == ("problem", "ok")
    assert found["namespace"].told == 'namespaces "x" not found'
    assert "kubectl create namespace" in found["namespace"].advice


@pytest.mark.parametrize(
    "why",
    [
        "exceeded quota: q, requested: count/leases.coordination.k8s.io=1, used: 9, limited: 9",
        "unable to create new content in namespace x because it is being terminated",
    ],
)
def test_a_quota_or_a_namespace_that_ends_is_no_lack_of_rights(cluster: Cluster, why: str) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        proxy.always = {"POST": refused(403, f'leases.coordination.k8s.io "a" is forbidden: {why}')}
        found = examine(url)
        with connect(url) as client:
            with pytest.raises(Forbidden, match=re.escape(why)) as refusal:
                client.lock("a").acquire(wait=0)
    assert "kubernetes-rbac.yaml" not in str(refusal.value)
    assert found["rights"].level == "ok"
    assert found["create"].level == "problem"
    assert why in found["create"].told


def test_doctor_behind_a_proxy_that_buffers_watches(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        proxy.always = {"watch=1": b""}
        found = examine(url)
    assert found["rights"].told.startswith("get, list, create, update, delete")
    assert "watch" not in found["rights"].told
    assert found["watch"].level == "warning"
    assert "a proxy may buffer it" in found["watch"].told


# -- other electors, in small ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "age"),
    [
        (lambda: datetime.now(UTC) - timedelta(seconds=90), 90),
        (lambda: None, 0),
        (lambda: datetime.now(UTC) + timedelta(days=1), 0),
    ],
)
def test_the_age_of_another_elector(
    cluster: Cluster, time: Callable[[], datetime | None], age: float
) -> None:
    at = time()
    spec: dict[str, Any] = {"holderIdentity": "other", "leaseDurationSeconds": 30}
    if at is not None:
        spec["acquireTime"] = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    cluster.server.request("POST", cluster.leases, {"metadata": {"name": "web"}, "spec": spec})
    with connect(cluster.url) as client:
        (holder,) = LeaderElection("web", client=client).status().holders
    assert holder.held_for == pytest.approx(age, abs=20 if age else 0)


def test_who_was_overruled_is_lost_and_its_id_is_never_granted_again(cluster: Cluster) -> None:
    connection = store_for(cluster.url).blocking_connection()
    connection.open(5)
    try:
        mine, waiter = (Acquire(b"leader:web", f"{n:032x}", "me", 30, queue=True) for n in (1, 2))
        granted = connection.apply([mine, waiter], 5)[0]
        assert isinstance(granted, Granted)
        found = cluster.lease("web")
        spec = {"holderIdentity": "other", "leaseDurationSeconds": 30, "leaseTransitions": 7}
        assert cluster.put(found | {"spec": spec}).status == HTTPStatus.OK
        assert connection.apply([Renew(b"leader:web", mine.id, 30)], 5) == [Lost()]
        (again,) = connection.apply([mine], 5)
        assert type(again).__name__ == "Gone"
        with connect(cluster.url) as client:
            status = LeaderElection("web", client=client).status()
        assert [each.owner for each in status.holders] == ["other"]
        assert status.holders[0].token > granted.token
        assert [each.owner for each in status.waiters] == ["me"]
        assert cluster.lease("web")["spec"].items() >= spec.items(), "its record is its own"
    finally:
        connection.close()


@pytest.mark.parametrize("option", ["strategy", "preferredHolder"])
def test_a_lease_of_coordinated_election_is_refused(cluster: Cluster, option: str) -> None:
    """It is put into etcd as a server does that elects by itself. This one drops the option, unless it is
    there already.
    """
    made = {"metadata": {"name": "web"}, "spec": {"leaseDurationSeconds": 15}}
    cluster.server.request("POST", cluster.leases, made)
    coordinate(cluster, "web", option)
    before = cluster.lease("web")
    with connect(cluster.url) as client:
        election = LeaderElection("web", client=client)
        for ask in (election.status, lambda: election.run(lambda _: None)):
            with pytest.raises(NotConfigured, match=r"the Lease web is for .* coordinated"):
                ask()
    assert cluster.lease("web") == before


def test_a_leader_whose_lease_becomes_one_of_coordinated_election_is_lost(cluster: Cluster) -> None:
    with connect(cluster.url) as client:
        with LeaderElection("web", ttl=2, client=client).campaign() as campaign:
            assert campaign.wait(5)
            coordinate(cluster, "web", "strategy")
            assert campaign.wait_lost(5)
            wait_until(lambda: isinstance(campaign.error, NotConfigured), "it tells why")
    spec = cluster.lease("web")["spec"]
    assert (spec["strategy"], spec["leaseDurationSeconds"]) == ("OldestEmulationVersion", 3)


def coordinate(cluster: Cluster, name: str, option: str) -> None:
    """Let a Lease have an option of coordinated election."""
    key = b64encode(f"/registry/leases/{cluster.namespace}/{name}".encode()).decode()
    (found,) = _etcd(cluster, "range", {"key": key})["kvs"]
    lease = json.loads(b64decode(found["value"]))
    lease["spec"][option] = "OldestEmulationVersion"
    value = b64encode(json.dumps(lease).encode()).decode()
    _etcd(cluster, "put", {"key": key, "value": value})
    wait_until(lambda: option in cluster.lease(name)["spec"], "the API server has seen it")


def _etcd(cluster: Cluster, method: str, said: dict[str, str]) -> Any:
    url = f"{cluster.server.etcd_url}/v3/kv/{method}"
    with urllib.request.urlopen(url, json.dumps(said).encode(), timeout=5) as answer:
        return json.load(answer)
