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
from dibs.testing import FaultProxy, Torture, TorturePlan, Verdict
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
SECONDS = 9.0
CALM_TOO = 20.0
"""So long that a calm phase ends it, in which everybody has to be served."""

LENGTHS = pytest.mark.parametrize(
    "seconds", [SECONDS, pytest.param(CALM_TOO, marks=pytest.mark.long)]
)

type Fault = Callable[[], object]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)


@contextmanager
def striking(fault: Fault, times: int, every: float) -> Iterator[None]:
    """Let something happen to the server in regular intervals, while the storm lasts."""
    over, errors = threading.Event(), list[BaseException]()

    def strike() -> None:
        for _ in range(times):
            if over.wait(every):
                return
            try:
                fault()
            except BaseException as error:
                errors.append(error)
                raise

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert errors == []


def torture(
    url: str, fault: Fault, times: int = 3, seconds: float = SECONDS, every: float = 2.5
) -> Verdict:
    plan = TorturePlan(seconds=seconds, ttl=TTL, processes=4, seed=1)
    with striking(fault, times, every):
        return Torture(url, plan).run()


def assert_clean(verdict: Verdict) -> None:
    assert verdict.violations == [], str(verdict)
    assert verdict.cycles > 50, str(verdict)
    assert verdict.struck > 0, str(verdict)


def crash(server: Server) -> Fault:
    def kill_and_start() -> None:
        server.kill()
        server.start()

    return kill_and_start


def standstill(server: Server) -> Fault:
    def pause() -> None:
        server.pause()
        try:
            threading.Event().wait(1.5 * TTL)
        finally:
            server.resume()

    return pause


# ---- Redis ----------------------------------------------------------------------------------------


@LENGTHS
def test_redis_with_its_log_keeps_leases_through_crashes(tmp_path: Path, seconds: float) -> None:
    """A crash of the server leaves what the system was given, so `everysec` keeps as much as `always`."""
    with RedisServer(tmp_path, persistence="everysec") as server:
        assert_clean(torture(server.url, crash(server), seconds=seconds))


def test_redis_without_persistence_keeps_exclusion_by_its_hold_off(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?restart_holdoff={TTL + 0.5}s"
        with connect(url) as client:
            client.lock("first").acquire(wait=10).release()  # a new server is an empty one, too
        assert_clean(torture(url, crash(server), times=2))


def test_redis_with_an_old_snapshot_keeps_exclusion_by_its_hold_off(tmp_path: Path) -> None:
    """It comes back with what it had before the lease, and that it was running already."""
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?restart_holdoff=3s"
        with connect(url) as client:
            client.lock("first").acquire(wait=10).release()
            with server.client() as plain:
                plain.save()
            held = client.lock("a", ttl=2).acquire()
            server.kill()
            server.start()
            with connect(url) as others, others.lock("a").acquire(wait=10) as second:
                assert held.remaining == 0
                assert second.token > held.token


def test_redis_without_persistence_forgets_leases_and_tokens_still_rise(tmp_path: Path) -> None:
    """The fault that the hold-off and the log are for: others are granted what is still held."""
    with RedisServer(tmp_path) as server, connect(server.url) as client:
        lock = client.lock("a", ttl="30s")
        held = lock.acquire()
        server.kill()
        server.start()
        with connect(server.url) as others, others.lock("a", ttl="30s").acquire(wait=10) as second:
            assert held.remaining > 0, "its holder believes in it until its next renewal"
            assert second.token > held.token
        held.release()


def test_redis_emptied_by_hand_tokens_still_rise(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, connect(server.url) as client:
        tokens = []
        for _ in range(20):
            with client.lock("a").acquire(wait=10) as lease:
                tokens.append(lease.token)
            with server.client() as plain:
                plain.flushall()
        assert tokens == sorted(set(tokens))


def test_a_lease_that_the_store_forgot_is_told_as_such(
    redis_server: RedisServer, redis_url: str
) -> None:
    """Its renewal got through, so the network is not to blame."""
    with connect(redis_url) as client:
        lease = client.lock("a", ttl=TTL).acquire()
        with redis_server.client() as plain:
            plain.flushall()
        assert lease.wait_lost(10)
        with pytest.raises(LeaseLost, match="the store has no such lease any more"):
            lease.ensure()


def test_redis_that_stands_still(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        assert_clean(torture(server.url, standstill(server)))


def test_redis_whose_clients_are_cut_off(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, server.client() as plain:

        def cut_all() -> None:
            for each in plain.client_list():
                if each["name"] == "dibs":
                    plain.client_kill_filter(_id=each["id"])

        assert_clean(torture(server.url, cut_all, times=3))


# ---- PostgreSQL -----------------------------------------------------------------------------------


@LENGTHS
def test_postgres_keeps_leases_through_crashes(tmp_path: Path, seconds: float) -> None:
    with PostgresServer(tmp_path) as server:
        assert_clean(torture(server.new_database(), crash(server), seconds=seconds))


def test_postgres_that_stands_still(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        assert_clean(torture(server.new_database(), standstill(server)))


def test_postgres_whose_sessions_are_ended(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    database = url.rpartition("/")[2]

    def end_all() -> None:
        with postgres_server.connect() as plain:
            plain.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (database,),
            )

    assert_clean(torture(url, end_all, times=3))


# ---- etcd -----------------------------------------------------------------------------------------


@LENGTHS
def test_etcd_keeps_leases_through_crashes(tmp_path: Path, seconds: float) -> None:
    with EtcdServer(tmp_path) as server:
        assert_clean(torture(f"etcd{server.url[4:]}", crash(server), seconds=seconds))


def test_etcd_that_stands_still(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        assert_clean(torture(f"etcd{server.url[4:]}", standstill(server)))


@LENGTHS
def test_a_cluster_of_etcd_whose_leaders_are_killed(tmp_path: Path, seconds: float) -> None:
    with EtcdCluster(tmp_path) as cluster:

        def kill_leader() -> None:
            leader = cluster.leader()
            leader.kill()
            cluster.leader()
            leader.start()

        hosts = ",".join(f"127.0.0.1:{member.port}" for member in cluster.members)
        assert_clean(torture(f"etcd://{hosts}", kill_leader, seconds=seconds))


# ---- the network, to each -----------------------------------------------------------------------


@pytest.fixture(params=["redis", "postgres", "etcd"])
def distant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, FaultProxy]]:
    """A server's URL by way of a proxy, and the proxy."""
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        url = request.getfixturevalue("redis_url")
    elif request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        url = request.getfixturevalue("postgres_url")
    else:
        server = request.getfixturevalue("etcd_server")
        url = f"etcd://127.0.0.1:{server.port}/{tmp_path.name}"
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy.url_for(url), proxy


def for_a_while(begin: Fault, heal: Fault, seconds: float = 0.7) -> Fault:
    def fault() -> None:
        begin()
        threading.Event().wait(seconds)
        heal()

    return fault


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
    turns = cycle(for_a_while(begin[way], proxy.heal) for way in ways)
    struck: list[None] = []

    def fault() -> None:
        next(turns)()
        struck.append(None)

    times = max(3, len(ways))
    assert_clean(torture(url, fault, times=times, every=1.2))
    assert len(struck) == times, "not every fault has happened"
