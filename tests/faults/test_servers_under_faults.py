"""Real servers that are killed, paused, emptied and cut off while processes take turns on them.

The torture kills and pauses the processes meanwhile and checks their histories: exclusion, tokens, and
that everybody is served once all is calm. What each store keeps through a fault is in
`docs/guarantees.md`, and what it loses is shown here, too.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

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

type Fault = Callable[[], object]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)


def keeps_leases(url: str, faults: Sequence[Fault], *, is_long: bool = False) -> None:
    """Let faults happen, while processes work and are killed and paused. Raises for a broken promise.

    A short run ends after the last fault. In a long one they happen four times, and there is a calm phase,
    in which everybody is served.
    """
    working, over, struck = threading.Event(), threading.Event(), threading.Event()
    every, errors, done = 2.4 if is_long else 0.3, list[BaseException](), 0

    def note(progress: TortureProgress) -> None:
        if progress.doing == "faults":
            working.set()
        if progress.struck:
            struck.set()

    plan = TorturePlan(seconds=20.0 if is_long else 90.0, ttl=TTL, processes=3, seed=1)
    torture = Torture(url, plan, progress=note)

    def strike() -> None:
        nonlocal done
        try:
            working.wait(60)
            for fault in [*faults] * (4 if is_long else 1):
                if over.wait(every):
                    return
                fault()
                done += 1
            struck.wait(30)
            over.wait(every)
        except BaseException as error:
            errors.append(error)
        if not is_long:
            torture.stop()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        verdict = torture.run()
    finally:
        for event in (working, over, struck):
            event.set()
        thread.join()
    assert errors == []
    assert done == len(faults) or (is_long and done), "not every fault has happened"
    assert verdict.violations == [], str(verdict)
    assert verdict.cycles > 10, str(verdict)
    assert verdict.struck > 0, str(verdict)


# ---- faults of the server and of the network ------------------------------------------------------


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


def fail(proxy: FaultProxy, begin: Callable[[FaultProxy], object]) -> None:
    """Let the network fail for a while."""
    begin(proxy)
    threading.Event().wait(0.5)
    proxy.heal()


OF_SERVERS: dict[str, list[Callable[[Any], object]]] = {
    "redis": [crash, standstill, cut_redis_clients],
    "postgres": [crash, standstill, end_postgres_sessions],
    "etcd": [crash, standstill],
    "etcd cluster": [kill_leader],
}
OF_NETWORKS: dict[str, Callable[[FaultProxy], object]] = {
    "cut": FaultProxy.cut,
    "hang": FaultProxy.hang,
    "drop_replies": FaultProxy.drop_replies,
    "reset": lambda proxy: proxy.reset_after(200, "to_client"),
}
EACH = [
    pytest.param(store, name, marks=pytest.mark.long)
    for store, faults in OF_SERVERS.items()
    for name in (*(fault.__name__ for fault in faults), *OF_NETWORKS)
    if store != "etcd cluster"
]


@contextmanager
def running(store: str, folder: Path) -> Iterator[tuple[Any, str]]:
    """A server that keeps leases through crashes of its own, and its URL."""
    if store == "redis":  # with `everysec` it answers before it writes while its disk is slow
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


@pytest.mark.parametrize(("store", "fault"), [*((store, "all") for store in OF_SERVERS), *EACH])
def test_leases_are_kept_through_faults(store: str, fault: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, url = stack.enter_context(running(store, tmp_path))
        faults: dict[str, Fault] = {
            each.__name__: partial(each, server) for each in OF_SERVERS[store]
        }
        if store != "etcd cluster":
            proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port))
            url = proxy.url_for(url)
            faults |= {name: partial(fail, proxy, begin) for name, begin in OF_NETWORKS.items()}
        if fault == "all":
            keeps_leases(url, [*faults.values()])
        else:
            keeps_leases(url, [faults[fault]], is_long=True)


# ---- Redis without persistence --------------------------------------------------------------------


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
        held = client.lock("a", ttl="2m").acquire()
        crash(server)
        with connect(server.url) as others, others.lock("a", ttl="2m").acquire(wait=30) as second:
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
