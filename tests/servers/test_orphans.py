"""No server outlives the tests that started it, however those end."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.servers.binaries import ROOT
from tests.servers.redis import RedisServer

WITHIN = 20.0

STARTS_SERVERS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from pathlib import Path
from tests.servers.postgres import PostgresServer
from tests.servers.process import children
from tests.servers.redis import RedisServer

folder = Path(sys.argv[1])
servers = [RedisServer(folder / "redis").start(), RedisServer(folder / "paused").start()]
servers.append(PostgresServer(folder / "postgres").start())
servers[1].pause()
with servers[2].connect():
    pids = [server.pid for server in servers] + children(servers[2].pid)
    print(*pids, flush=True)
    sys.stdin.read()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_servers_end_with_the_process_that_started_them(tmp_path: Path, how: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_SERVERS, str(tmp_path)],
        cwd=ROOT,
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
            assert select.select([file], [], [], WITHIN)[0], f"{number} runs on"
            os.close(file)


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server:
        assert server.client().ping()
