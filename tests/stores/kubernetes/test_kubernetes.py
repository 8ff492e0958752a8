"""Kubernetes as a store: what is asked of the server, its faults, and what others find in it."""

import json
import re
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from dibs.errors import AcquireTimeout, BackendUnavailable, Forbidden, NotConfigured
from dibs.model import Acquire, Gone, Granted, Lost, Renew
from dibs.stores.kubernetes.objects import lease_name
from dibs.stores.registry import store_for
from dibs.sync import LeaderElection, connect
from tests.servers.kube import READER, STRANGER
from tests.servers.waiting import wait_until
from tests.stores.kubernetes.configs import Cluster
from tests.stores.kubernetes.proxies import HttpProxy
from tests.stores.sides import findings, use, waiting

pytestmark = pytest.mark.once


@pytest.fixture
def proxy() -> Iterator[HttpProxy]:
    with HttpProxy() as proxy:
        yield proxy


@pytest.fixture
def through(cluster: Cluster, proxy: HttpProxy) -> str:
    """The URL of the namespace by way of the proxy."""
    return cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})


# -- what is asked -----------------------------------------------------------------------------------


def test_a_cycle_is_two_writes_and_a_renewal_is_one(through: str, proxy: HttpProxy) -> None:
    with connect(through) as client:
        client.lock("a").acquire().release()
        before = Counter(proxy.methods)
        for _ in range(10):
            client.lock("a").acquire().release()
        assert Counter(proxy.methods) - before == {"PUT": 20}
        lease = client.lock("a").acquire()
        lease.renew()
        assert Counter(proxy.methods) - before == {"PUT": 22}


def test_a_waiter_sends_heartbeats_and_no_more(
    cluster: Cluster, through: str, proxy: HttpProxy
) -> None:
    """Each is one PUT; after the holder has written, a GET and a PUT more."""
    with waiting(cluster.url, through):
        time.sleep(1)  # it has its place, and a watch
        before = Counter(proxy.methods)
        time.sleep(2)
        calls = Counter(proxy.methods) - before
    handed = Counter(proxy.methods) - before - calls
    assert calls.keys() <= {"PUT", "GET"}
    assert calls["GET"] <= 1, "the holder has written once: where it can be notified"
    assert calls["PUT"] - calls["GET"] <= 2, "a heartbeat each 1.7 s"
    assert handed.total() <= 5, "it was told, and did not ask again and again"


BUSY = b"HTTP/1.1 429 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
AWAY = b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n"


def test_a_busy_server_is_asked_again_when_it_says_so(through: str, proxy: HttpProxy) -> None:
    with connect(through) as client:
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
    name = "dibs-lock.order-3a42"
    with connect(cluster.url) as client:
        with client.lock("order:42", ttl=2.5, label="web") as lease:
            found = cluster.lease(name)
            spec, metadata = found["spec"], found["metadata"]
            assert lease.owner.endswith("/web")
            assert spec["holderIdentity"] == f"{lease.owner}_{lease.token}"
            assert spec["leaseDurationSeconds"] == 4, "client-go reads whole seconds only"
            assert spec["acquireTime"] == spec["renewTime"]
            assert spec.get("leaseTransitions", 0) == 0
            assert metadata["annotations"]["dibs/key"] == "lock:order:42"
            assert metadata["labels"]["app.kubernetes.io/managed-by"] == "dibs"
            lease.renew()
            renewed = cluster.lease(name)["spec"]
            assert renewed["renewTime"] > spec["renewTime"] == renewed["acquireTime"]
        found = cluster.lease(name)
        assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == ("", 1)
        found["metadata"]["annotations"]["team"] = "blue"
        assert cluster.put(found).status == HTTPStatus.OK
        with client.lock("order:42"):
            found = cluster.lease(name)
            assert found["spec"]["leaseTransitions"] == 1
            assert found["metadata"]["annotations"]["team"] == "blue", "it is somebody else's"
        with client.semaphore("pool", 3) as one, client.semaphore("pool", 3, label="b"):
            holder = cluster.lease("dibs-semaphore.pool")["spec"]["holderIdentity"]
            assert holder == f"{one.owner}_{one.token} and 1 more"
        with client.leader_election("main", ttl=3, lock_delay=30):
            spec = cluster.lease("main")["spec"]
            assert spec["leaseDurationSeconds"] == 34, "client-go waits for the lock delay, too"
        with client.lock(b"a\xff"):
            key = cluster.lease(lease_name(b"lock:a\xff"))["metadata"]["annotations"]["dibs/key"]
            assert b64decode(key.removeprefix("base64:")) == b"lock:a\xff"


def test_two_keys_never_share_a_lease() -> None:
    texts = [*"aA-", "a_b", "a-b", "a.b", "a--b", "a-2d", "a-", "a/b", ".a", "a.", "dibs-a"]
    keys = {f"{kind}:{text}".encode() for kind in ("lock", "leader", "hash") for text in texts}
    keys |= {start + bytes([number]) for start in (b"", b"lock:") for number in range(256)}
    keys |= {b"lock:" + b"x" * 300, b"lock:" + b"x" * 301}
    names = {lease_name(key) for key in keys}
    assert len(names) == len(keys)
    assert all(re.fullmatch(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", name) for name in names)
    assert not any(re.search(r"\.[.-]|-\.", name) for name in names)
    assert lease_name(b"leader:ecaf1259.my.domain") == "ecaf1259.my.domain"


def test_idle_leases_are_deleted_and_those_of_others_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("KEEP_IDLE", -5.0), ("SKEWS_IDLE", 0.0), ("SWEEP_EVERY", 8)):
        monkeypatch.setattr(f"dibs.stores.cas.ledger.{name}", value)
    made = {"metadata": {"name": "theirs"}, "spec": {"leaseDurationSeconds": 1}}
    cluster.server.request("POST", cluster.leases, made)

    def names() -> set[str]:
        items = cluster.server.request("GET", cluster.leases).body["items"]
        return {each["metadata"]["name"] for each in items}

    with connect(cluster.url) as client:
        client.lock("gone").acquire().release()
        with LeaderElection("theirs", client=client).campaign(), client.lock("held"):

            def is_deleted() -> bool:
                client.lock("idle").acquire().release()
                return "dibs-lock.gone" not in names()

            wait_until(is_deleted, "what is idle is deleted")
            assert {"theirs", "dibs-lock.held"} <= names()


def test_a_waiter_is_served_after_watches_that_fail(
    cluster: Cluster, through: str, proxy: HttpProxy
) -> None:
    """As when the server has forgotten the version to go on from, or ends them (after half an hour)."""
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n'
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    forgotten = b"%b%x\r\n%b\r\n" % (head, len(gone), gone)

    def watches() -> int:
        return sum("watch=1" in each for each in proxy.requests)

    for answer in (forgotten, head + b"0\r\n\r\n"):
        proxy.always = {"watch=1": answer}
        before = watches()
        with waiting(cluster.url, through):
            wait_until(lambda: watches() >= before + 2, "it watches again")  # noqa: B023 -- at once
            proxy.always = {}
            before = watches()
            wait_until(lambda: watches() > before, "and again")  # noqa: B023


# -- users and what `dibs doctor` finds --------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (READER, "no right to create Leases.*kubernetes-rbac.yaml"),
        (STRANGER, "no right to get Leases.*kubernetes-rbac.yaml"),
        ("secret9", "does not know who we are"),
    ],
)
def test_users_without_rights(cluster: Cluster, token: str, said: str) -> None:
    with pytest.raises(Forbidden, match=said) as refusal:
        use(cluster.url_for(cluster.server, user={"token": token}))
    assert "secret9" not in str(refusal.value)


def test_doctor_knows_what_is_lacking(cluster: Cluster) -> None:
    assert {each.level for each in findings(cluster.url).values()} == {"ok"}
    assert not cluster.server.request("GET", cluster.leases).body["items"], "it has left nothing"
    rights = findings(cluster.url_for(cluster.server, user={"token": READER}))["rights"]
    assert rights.level == "problem"
    assert "no create, update, delete on Leases" in rights.told


QUOTA = "exceeded quota: q, requested: count/leases.coordination.k8s.io=1, used: 9, limited: 9"
ENDING = "unable to create new content in namespace x because it is being terminated"


@pytest.mark.parametrize(
    ("code", "kind", "message", "about"),
    [
        (404, "namespaces", 'namespaces "x" not found', "namespace"),
        (403, "leases", f'leases.coordination.k8s.io "a" is forbidden: {QUOTA}', "create"),
        (403, "leases", f'leases.coordination.k8s.io "a" is forbidden: {ENDING}', "create"),
    ],
)
def test_a_namespace_that_takes_no_leases_is_no_lack_of_rights(
    through: str, proxy: HttpProxy, code: int, kind: str, message: str, about: str
) -> None:
    """A server finds that when a Lease is to be made."""
    said = {"kind": "Status", "code": code, "message": message, "details": {"kind": kind}}
    body = json.dumps(said).encode()
    answer = b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%b" % (code, len(body), body)
    proxy.always = {"POST": answer}
    found = findings(through)
    assert (found[about].level, found["rights"].level) == ("problem", "ok")
    assert message in found[about].told
    error, advice = (NotConfigured, "check that the namespace") if code == 404 else (Forbidden, "")
    with pytest.raises(error, match=f"{re.escape(message)}.*{advice}") as refusal:
        use(through)
    assert "kubernetes-rbac.yaml" not in str(refusal.value)


# -- other electors, in small ------------------------------------------------------------------------


def test_a_leader_who_was_overruled_is_lost_and_its_id_is_never_granted_again(
    cluster: Cluster,
) -> None:
    connection = store_for(cluster.url).blocking_connection()
    connection.open(5)
    mine, waiter = (Acquire(b"leader:web", f"{n:032x}", "me", 30, queue=True) for n in (1, 2))
    granted = connection.apply([mine, waiter], 5)[0]
    assert isinstance(granted, Granted)
    found = cluster.lease("web")
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 30, "leaseTransitions": 7}
    assert cluster.put(found | {"spec": spec}).status == HTTPStatus.OK
    assert connection.apply([Renew(b"leader:web", mine.id, 30)], 5) == [Lost()]
    (again,) = connection.apply([mine], 5)
    assert isinstance(again, Gone)
    with connect(cluster.url) as client:
        status = LeaderElection("web", client=client).status()
    assert [each.owner for each in status.holders] == ["other"]
    assert status.holders[0].token > granted.token
    assert [each.owner for each in status.waiters] == ["me"]
    assert cluster.lease("web")["spec"].items() >= spec.items(), "its record is its own"
    connection.close()


def test_a_lease_of_coordinated_election_is_refused(
    cluster: Cluster, through: str, proxy: HttpProxy
) -> None:
    """This server drops the option, so the proxy puts it in."""
    with connect(through) as client:
        election = LeaderElection("web", ttl=2, client=client)
        with election.campaign() as campaign:
            assert campaign.wait(5)
            lease = cluster.lease("web")
            lease["spec"]["strategy"] = "OldestEmulationVersion"
            lease["metadata"]["resourceVersion"] = "0"
            body = json.dumps(lease).encode()
            found = b"HTTP/1.1 200 So\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            conflict = b"HTTP/1.1 409 So\r\ncontent-length: 0\r\n\r\n"
            path = f"{cluster.leases}/web"
            proxy.always = {
                f"GET {cluster.server.url}{path}": found,
                f"PUT {cluster.server.url}{path}": conflict,
            }
            assert campaign.wait_lost(5), "it is lost to whoever led already"
            wait_until(lambda: isinstance(campaign.error, NotConfigured), "it tells why")
        before = len(proxy.methods)
        for ask in (election.status, lambda: election.run(lambda _: None)):
            with pytest.raises(NotConfigured, match=r"the Lease web is for .* coordinated"):
                ask()
        assert set(proxy.methods[before:]) == {"GET"}, "it is left as it is"
