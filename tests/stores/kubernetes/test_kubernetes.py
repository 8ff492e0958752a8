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
from pathlib import Path
from typing import Any, cast

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
from dibs.model import Acquire, Finding, Granted, Inspect, Lost, Refused, Renew
from dibs.runtime.batcher import apply_over
from dibs.stores.cas.clock import StoreClock
from dibs.stores.kubernetes.access import find_access
from dibs.stores.kubernetes.cells import KubernetesCells
from dibs.stores.kubernetes.objects import is_later, lease_name
from dibs.stores.kubernetes.watch import LeaseWatch
from dibs.stores.registry import store_for
from dibs.stores.web.client import WebClient
from dibs.stores.web.endpoint import WebServer
from dibs.sync import LeaderElection, connect
from dibs.testing import FaultProxy
from tests.servers.kube import READER, STRANGER, KubeServer
from tests.servers.waiting import wait_until
from tests.stores.cas_processes import killed_holder
from tests.stores.kubernetes.conftest import Cluster
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


def test_many_keys_at_once_meet_no_limit(cluster: Cluster) -> None:
    """Some of these are answered 429 when the server is busy: nobody sees that."""
    connection = store_for(cluster.url).blocking_connection()
    connection.open(5)
    try:
        commands = [Acquire(f"lock:{n}".encode(), f"{n:032x}", "o", 60) for n in range(512)]
        replies = connection.apply(commands, 60)
        assert all(isinstance(reply, Granted) for reply in replies)
    finally:
        connection.close()


def test_a_busy_server_is_asked_again_when_it_says_so(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        with connect(url) as client:
            client.lock("a").acquire().release()
            proxy.answers += [b"HTTP/1.1 429 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"]
            begun = time.monotonic()
            client.lock("a").acquire(wait=5).release()
            assert 1 <= time.monotonic() - begun < 3
            proxy.answers += [b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n"] * 50
            with pytest.raises((BackendUnavailable, AcquireTimeout), match="503"):
                client.lock("a").acquire(wait=0)


def test_a_lone_try_gets_what_a_dead_process_held(cluster: Cluster) -> None:
    url, ttl, skew = f"{cluster.url}&skew=1", 2.0, 1.0
    token = killed_holder(url, "cron", ttl)
    killed, tries = time.monotonic(), 0
    while True:
        tries += 1
        with connect(url) as client:  # it has watched for no time at all
            try:
                lease = client.lock("cron", ttl=2).acquire(wait=0)
            except AcquireTimeout:
                assert time.monotonic() < killed + ttl + skew + 3
            else:
                assert lease.token > token
                break
    assert tries > 1, "the lease was still trusted at first"


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


def test_a_surrogate_in_a_text_comes_back(cluster: Cluster) -> None:
    with connect(cluster.url) as client, client.lock("a", note="\udc80\x00 ä"):
        assert client.lock("a").status().holders[0].note == "\udc80\x00 ä"


@pytest.mark.parametrize(
    ("annotation", "value", "error"),
    [
        ("dibs/book", "nonsense", Corrupt),
        ("dibs/book", '{"format": 1}', Corrupt),
        ("dibs/book", '{"format": 99}', IncompatibleVersion),
        ("dibs/key", "lock:b", Corrupt),
        ("dibs/key", None, Corrupt),
        ("dibs/key", "base64:a", Corrupt),
    ],
)
def test_what_is_no_book_grants_nothing(
    cluster: Cluster, annotation: str, value: str | None, error: type[Exception]
) -> None:
    with connect(cluster.url) as client:
        client.lock("a").acquire().release()
        found = cluster.lease("dibs-lock.a")
        found["metadata"]["annotations"][annotation] = value
        if value is None:
            del found["metadata"]["annotations"][annotation]
        assert cluster.put(found).status == HTTPStatus.OK
        with pytest.raises(error, match="the Lease dibs-lock"):
            client.lock("a").acquire(wait=0)
        with client.lock("b"):  # other keys are well
            assert [each.key for each in client.list()] == [b"lock:b"]


def test_a_lease_that_somebody_deletes_is_lost(cluster: Cluster) -> None:
    with connect(cluster.url) as client:
        lease = client.lock("a", ttl=1).acquire()
        cluster.server.request("DELETE", f"{cluster.leases}/dibs-lock.a")
        assert lease.wait_lost(5)
        with client.lock("a") as second:
            assert second.token > lease.token - 2_000_000, "both begin with the server's date"


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


def test_a_key_that_is_full_takes_no_more(cluster: Cluster) -> None:
    connection = store_for(cluster.url).blocking_connection()
    connection.open(5)
    note = "x" * 60_000
    try:
        commands = [
            Acquire(b"semaphore:a", f"{n:032x}", "o", 30, capacity=9, note=note) for n in range(5)
        ]
        replies = [connection.apply([each], 10)[0] for each in commands]
    finally:
        connection.close()
    assert [type(reply) for reply in replies] == [Granted] * 2 + [Refused] * 3
    assert {reply.reason for reply in replies if isinstance(reply, Refused)} == {"queue_full"}


# -- faults ------------------------------------------------------------------------------------------


def test_a_waiter_is_served_after_its_watch_was_cut(cluster: Cluster) -> None:
    with FaultProxy("127.0.0.1", cluster.server.port) as proxy:
        through = cluster.url_for(proxy.url_for(cluster.server.url))
        with connect(cluster.url) as holder, connect(through) as waiter:
            lease = holder.lock("a", ttl=60).acquire()
            got = threading.Event()

            def wait() -> None:
                with waiter.lock("a", ttl=60):
                    got.set()

            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lambda: holder.lock("a").status().waiters, "somebody waits")
            time.sleep(1.1)  # so that the watch has lasted for a while
            proxy.cut()
            lease.release()
            assert got.wait(5)
            thread.join()


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


def test_a_watch_brings_what_others_wrote_of_a_contended_key(cluster: Cluster) -> None:
    """So that its next holder or waiter need not load it. A key for which nobody waits is not watched."""

    async def main() -> list[Any]:
        connections = [store_for(cluster.url).async_connection() for _ in range(2)]
        mine, other = connections
        for connection in connections:
            await connection.open()
            await connection.subscribe(lambda _: None)
        known = cast(Any, mine)._enter().ledger._known
        before: list[Any] = []
        for number, name in enumerate((b"lock:alone", b"lock:a")):
            hold = Acquire(name, f"hold-{number}", "o", 60.0, inbox=mine.inbox)
            await apply_over(mine, [hold])
            before.append(known[name].version)
        for command in (
            Inspect(b"lock:alone"),
            Renew(b"lock:alone", "hold-0", 60.0),
            Acquire(b"lock:a", "waits", "o", 60.0, inbox=other.inbox, queue=True),
        ):
            await apply_over(other, [command])
        async with asyncio.timeout(5):
            while not is_later(known[b"lock:a"].version, before[1]):
                await asyncio.sleep(0.01)
        entries = [each["is"] for each in known[b"lock:a"].state["entries"]]
        for connection in connections:
            await connection.close()
        return [entries, known[b"lock:alone"].version == before[0]]

    assert asyncio.run(main()) == [["hold", "waiter"], True]


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


def test_an_answer_that_is_lost_costs_no_lease(cluster: Cluster) -> None:
    with FaultProxy("127.0.0.1", cluster.server.port) as proxy:
        with connect(cluster.url_for(proxy.url_for(cluster.server.url))) as client:
            client.lock("a").acquire().release()
            proxy.drop_replies()
            threading.Timer(0.3, proxy.heal).start()
            with client.lock("a", ttl=3) as lease:
                assert lease.token
            assert not client.lock("a").locked()


def test_a_server_that_restarts_keeps_its_leases(tmp_path: Path) -> None:
    with KubeServer(tmp_path / "kube", fsync=True) as server:
        url = Cluster(server, tmp_path).url
        with connect(url) as client:
            lease = client.lock("a", ttl=30).acquire()
            server.kill()
            with pytest.raises((BackendUnavailable, AcquireTimeout)):
                client.lock("b").acquire(wait=0.2)
            server.start()
            lease.renew()
            with connect(url) as other, pytest.raises(AcquireTimeout):
                other.lock("a").acquire(wait=0)
            assert lease.release()


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


def test_a_server_that_stays_busy_is_told(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        with connect(url) as client:
            client.lock("a").acquire().release()
            proxy.always = {
                "/leases": b"HTTP/1.1 429 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
            }
            with pytest.raises((BackendUnavailable, AcquireTimeout), match=r"throttles .*\(429\)"):
                client.lock("a").acquire(wait=4)


def test_a_server_that_hangs_is_named(cluster: Cluster) -> None:
    with HttpProxy() as proxy:
        url = cluster.url_for(cluster.server, cluster={"proxy-url": proxy.url})
        proxy.always = {"/leases": b""}
        connection = store_for(url).blocking_connection()
        said = f"{url} did not answer within 0.5 s; check the store and the network"
        try:
            with pytest.raises(BackendUnavailable, match=re.escape(said)):
                connection.open(0.5)
        finally:
            connection.close()


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


def test_a_leader_whose_lease_becomes_one_of_coordinated_election_is_lost(
    cluster: Cluster,
) -> None:
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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kubernetes://Team_A", "looks like kubernetes://namespace"),
        ("kubernetes://a/b", "looks like kubernetes://namespace"),
    ],
)
def test_a_url_that_is_wrong(url: str, said: str) -> None:
    with pytest.raises(NotConfigured, match=re.escape(said)):
        connect(url)
