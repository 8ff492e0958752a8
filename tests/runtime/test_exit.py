"""How a process ends, and what becomes of its leases."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.sync import Client, connect
from tests.runtime.scripts import run_script

pytestmark = pytest.mark.multiprocess

HOLD = """
import asyncio, logging, sys, time
logging.getLogger("dibs").setLevel(logging.CRITICAL)
url, how = sys.argv[1:]
if how == "async":
    import dibs

    async def main():
        return await dibs.connect(url).lock("a", ttl=30).acquire()

    lease = asyncio.run(main())
else:
    import dibs.sync

    lease = dibs.sync.connect(url).lock("a", ttl=30).acquire()
    if how == "after a renewal":
        lease.renew()
        time.sleep(1.2)  # the keeper is at work by now
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'leases.db'}"


@pytest.fixture
def client(url: str) -> Client:
    return connect(url)


@pytest.mark.parametrize(
    ("how", "ending", "status"),
    [
        ("async", "", 0),
        ("blocking", "", 0),
        ("after a renewal", "", 0),
        ("blocking", "sys.exit()", 0),
        ("blocking", "1 / 0", 1),
        ("blocking", "raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_a_program_that_ends_with_a_lease_gives_it_up(
    client: Client, url: str, how: str, ending: str, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLD + ending, url, how],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert client.lock("a").status().holders == ()
    client.close()


def test_one_that_is_killed_keeps_it_for_its_ttl(client: Client, url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + "print(flush=True); time.sleep(60)", url, "blocking"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    status = client.lock("a").status()
    assert len(status.holders) == 1
    assert 20 < status.holders[0].expires_in <= 30
    assert client.lock("a").try_acquire() is None
    client.close()


def test_a_store_that_is_gone_does_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "there" / "leases.db"
    path.parent.mkdir()
    source = HOLD + "import shutil; shutil.rmtree(sys.argv[1][10:].rsplit('/', 1)[0])"
    run_script(source, f"sqlite:///{path}", "blocking", timeout=15)


def test_a_keeper_thread_never_keeps_a_program_alive(url: str) -> None:
    lines = run_script(
        HOLD + "import threading\nprint(all(t.daemon for t in threading.enumerate()[1:]))",
        url,
        "after a renewal",
        timeout=15,
    )
    assert lines == ["True"]
