"""Real servers that are killed, paused, emptied and cut off while processes take turns on them.

The torture kills and pauses the processes meanwhile and checks their histories: exclusion, tokens, and
that everybody is served once all is calm. What each store keeps through a fault is in
`docs/guarantees.md`, and what it loses is shown here, too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from dibs import LeaseLost
from dibs.sync import connect
from dibs.testing import FaultProxy, Torture, TorturePlan
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.server import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.serial,
    pytest.mark.multiprocess,
    pytest.mark.timeout(180),
]

TTL = 1.0

LENGTHS = pytest.mark.parametrize(
    # strikes, seconds between them, seconds; the long run ends with a calm phase, that serves everybody
    ("times", "every", "seconds"),
    [(2, 0.8, 4.0), pytest.param(4, 2.5, 20.0, marks=pytest.mark.long)],
    ids=["short", "long"],
)

type Fault = Callable[[], object]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)


@contextmanager
def striking(fault: Fault, times: int, every: float) -> Iterator[list[None]]:
    """Let something happen to the server in regular intervals. Gives how often it has happened."""
    over, errors, struck = threading.Event(), list[BaseException](), list[None]()

    def strike() -> None:
        for _ in range(times):
            if over.wait(every):
                return
            try:
                fault()
                struck.append(None)
            except BaseException as error:
                errors.append(error)
                raise

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        over.set()
        thread.join()
    assert errors == []


def keeps_leases(url: str, fault: Fault, times: int, every: float, seconds: float) -> None:
    """Raise if a promise was broken. Long runs also kill and pause the processes."""
    plan = TorturePlan(seconds=seconds, ttl=TTL, processes=4, seed=1)
    with striking(fault, times, every) as struck:
        verdict = Torture(url, plan).run()
    assert verdict.violations == [], str(verdict)
    assert verdict.cycles > 20, str(verdict)
    assert verdict.struck > 0 or seconds < 9, str(verdict)
    assert len(struck) == times, "not every fault has happened"


# ---- faults of the server -------------------------------------------------------------------------


def crash(server: Server) -> None:
    server.kill()
    server.start()


def standstill(server: Server) -> None:
    server.pause()
    try:
        threading.Event().wait(1.2 * TTL)
    finally:
        server.resume()


def cut_redis_clients(server: RedisServer) -> None:
    with server.client() as plain:
        for each in plain.client_list():
            if each["name"] == "dibs":
                plain.client_kill_filter(_id=each["id"])


def end_postgres_sessions(server: PostgresServer) -> None:
    with server.connect() as plain:
        plain.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dibs'"
        )


def kill_leader(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    leader.kill()
    cluster.leader()
    leader.start()


@contextmanager
def running(store: str, folder: Path) -> Iterator[tuple[object, str]]:
    """A server that keeps leases through crashes of its own, and its URL."""
    if store == "redis":
        with RedisServer(folder, persistence="always") as redis:
            yield redis, redis.url
    elif store == "postgres":
        with PostgresServer(folder) as postgres:
            yield postgres, postgres.new_database()
    elif store == "etcd":
        with EtcdServer(folder) as etcd:
            yield etcd, f"etcd{etcd.url[4:]}"
    else:
        with EtcdCluster(folder) as cluster:
            hosts = ",".join(f"127.0.0.1:{member.port}" for member in cluster.members)
            yield cluster, f"etcd://{hosts}"


@LENGTHS
@pytest.mark.parametrize(
    ("store", "fault"),
    [
        *[
            (store, fault)
            for store in ("redis", "postgres", "etcd")
            for fault in (crash, standstill)
        ],
        ("redis", cut_redis_clients),
        ("postgres", end_postgres_sessions),
        ("etcd cluster", kill_leader),
    ],
)
def test_leases_are_kept_through_faults_of_the_server(
    store: str,
    fault: Callable[[object], None],
    times: int,
    every: float,
    seconds: float,
    tmp_path: Path,
) -> None:
    """Redis has `appendfsync always`: with `everysec` it answers before it writes while its disk is slow."""
    with running(store, tmp_path) as (server, url):
        keeps_leases(url, lambda: fault(server), times, every, seconds)


# ---- Redis without persistence --------------------------------------------------------------------


@LENGTHS
def test_redis_without_persistence_keeps_exclusion_by_its_hold_off(
    tmp_path: Path, times: int, every: float, seconds: float
) -> None:
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?restart_holdoff={TTL + 0.5}s"
        with connect(url) as client:
            client.lock("first").acquire(wait=10).release()  # a new server is an empty one, too
        keeps_leases(url, lambda: crash(server), times // 2, every, seconds)


def test_redis_with_an_old_snapshot_keeps_exclusion_by_its_hold_off(tmp_path: Path) -> None:
    """It comes back with what it had before the lease, and that it was running already."""
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?restart_holdoff=3s"
        with connect(url) as client:
            client.lock("first").acquire(wait=10).release()
            with server.client() as plain:
                plain.save()
            held = client.lock("a", ttl=2).acquire()
            crash(server)
            with connect(url) as others, others.lock("a").acquire(wait=10) as second:
                assert held.remaining == 0
                assert second.token > held.token


def test_redis_without_persistence_forgets_leases_and_tokens_still_rise(tmp_path: Path) -> None:
    """The fault that the hold-off and the log are for: others are granted what is still held."""
    with RedisServer(tmp_path) as server, connect(server.url) as client:
        held = client.lock("a", ttl="30s").acquire()
        crash(server)
        with connect(server.url) as others, others.lock("a", ttl="30s").acquire(wait=10) as second:
            assert held.remaining > 0, "its holder believes in it until its next renewal"
            assert second.token > held.token
        held.release()


def test_redis_emptied_by_hand_tokens_still_rise(redis_server: RedisServer, redis_url: str) -> None:
    with connect(redis_url) as client, redis_server.client() as plain:
        tokens = []
        for _ in range(20):
            with client.lock("a").acquire(wait=10) as lease:
                tokens.append(lease.token)
            plain.flushall()
        assert tokens == sorted(set(tokens))
        lost = client.lock("a", ttl=TTL).acquire()
        plain.flushall()
        assert lost.wait_lost(10)
        with pytest.raises(LeaseLost, match="the store has no such lease any more"):
            lost.ensure()


# ---- the network ----------------------------------------------------------------------------------


@pytest.fixture(params=["redis", "postgres", "etcd"])
def distant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, FaultProxy]]:
    """A server's URL by way of a proxy, and the proxy."""
    server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "etcd":
        url = f"etcd://127.0.0.1:{server.port}/{tmp_path.name}"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy.url_for(url), proxy


WAYS = ("cut", "hang", "drop_replies", "reset")


@pytest.mark.parametrize(
    "ways", [WAYS, *(pytest.param((way,), marks=pytest.mark.long) for way in WAYS)], ids=", ".join
)
def test_the_network_fails(distant: tuple[str, FaultProxy], ways: tuple[str, ...]) -> None:
    """In each of these ways by turns; in the long runs, in one way again and again."""
    url, proxy = distant
    begin: dict[str, Fault] = {
        "cut": proxy.cut,
        "hang": proxy.hang,
        "drop_replies": proxy.drop_replies,
        "reset": lambda: proxy.reset_after(200, "to_client"),
    }
    turns = cycle(ways)

    def fault() -> None:
        begin[next(turns)]()
        threading.Event().wait(0.5)
        proxy.heal()

    is_short = len(ways) > 1
    keeps_leases(url, fault, 4, 0.4 if is_short else 1.2, 5.0 if is_short else 9.0)
