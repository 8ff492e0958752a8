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
from dibs.testing import FaultProxy, Torture, TorturePlan, TortureProgress
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
    "is_long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "long"]
)
"""A short run ends after its last fault; a long one with a calm phase, in which everybody is served."""

type Fault = Callable[[], object]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)


class Striker:
    """Lets something happen to the server in intervals, once the processes of a torture work."""

    def __init__(self, fault: Fault, times: int, every: float) -> None:
        self._fault = fault
        self._times = times
        self._every = every
        self._work, self._struck, self._over = (threading.Event() for _ in range(3))
        self.done = 0
        """How often it has happened."""
        self.errors: list[BaseException] = []

    def note(self, progress: TortureProgress) -> None:
        """How far the torture has come."""
        if progress.doing == "faults":
            self._work.set()
        if progress.struck:
            self._struck.set()

    def strike(self) -> None:
        try:
            self._work.wait(60)
            for _ in range(self._times):
                if self._over.wait(self._every):
                    return
                self._fault()
                self.done += 1
            self._struck.wait(30)
            self._over.wait(self._every)
        except BaseException as error:
            self.errors.append(error)

    def end(self) -> None:
        for each in (self._over, self._work, self._struck):
            each.set()


def keeps_leases(
    url: str,
    fault: Fault,
    is_long: bool,
    *,
    times: int = 2,
    every: float = 0.8,
    seconds: float = 20.0,
) -> None:
    """Kill and pause processes, and let the fault happen meanwhile. Raise if a promise was broken."""
    striker = Striker(fault, 2 * times if is_long else times, 3 * every if is_long else every)
    plan = TorturePlan(seconds=seconds if is_long else 90.0, ttl=TTL, processes=4, seed=1)
    torture = Torture(url, plan, progress=striker.note)

    def strike() -> None:
        striker.strike()
        if not is_long:
            torture.stop()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        verdict = torture.run()
    finally:
        striker.end()
        thread.join()
    assert striker.errors == []
    assert striker.done == times or (is_long and striker.done), "not every fault has happened"
    assert verdict.violations == [], str(verdict)
    assert verdict.cycles > 10, str(verdict)
    assert verdict.struck > 0, str(verdict)


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
    is_long: bool,
    tmp_path: Path,
) -> None:
    """Redis has `appendfsync always`: with `everysec` it answers before it writes while its disk is slow."""
    with running(store, tmp_path) as (server, url):
        keeps_leases(url, lambda: fault(server), is_long)


# ---- Redis without persistence --------------------------------------------------------------------


@LENGTHS
def test_redis_without_persistence_keeps_exclusion_by_its_hold_off(
    tmp_path: Path, is_long: bool
) -> None:
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?restart_holdoff={TTL + 0.5}s"
        with connect(url) as client:
            client.lock("first").acquire(wait=10).release()  # a new server is an empty one, too
        keeps_leases(url, lambda: crash(server), is_long, times=1)


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

    keeps_leases(url, fault, len(ways) == 1, times=4, every=0.4, seconds=12.0)
