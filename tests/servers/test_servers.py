"""The servers of the tests keep their data over a kill, and end with who started them."""

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dibs.sync
from tests.servers.binaries import ROOT, MissingServer
from tests.servers.etcd import EtcdServer
from tests.servers.fixtures import missing_is_skipped
from tests.servers.ports import HOST


@pytest.mark.parametrize("version", ["3.4", pytest.param("3.5", marks=pytest.mark.long)])
def test_a_lock_outlives_a_killed_etcd_of_an_older_version(tmp_path: Path, version: str) -> None:
    with EtcdServer(tmp_path / "server", version=version, fsync=True) as server:
        url, pid = f"etcd://{HOST}:{server.port}", server.pid
        with dibs.sync.connect(url) as client, client.lock("a"):
            server.kill()
            assert not server.running
            server.start()
            assert server.pid != pid
            with dibs.sync.connect(url) as other:
                assert other.lock("a").try_acquire() is None
    assert not server.running


STARTS_SERVERS = """
import sys, threading
from pathlib import Path
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

folder = Path(sys.argv[1])
servers = [RedisServer(folder / "redis"), PostgresServer(folder / "postgres")]
for server in servers:  # they outlive the thread that started them
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
servers[0].pause()
print(*(server.pid for server in servers), flush=True)
sys.stdin.read()
"""


def test_servers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_SERVERS, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(watched) == 2
        parent.kill()
        for server in watched:
            assert select.select([server], [], [], 20)[0], "it runs on"
            os.close(server)


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_server_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="install it"), missing_is_skipped():
        raise MissingServer("install it")
