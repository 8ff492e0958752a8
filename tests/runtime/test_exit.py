"""How a process ends, and what becomes of its leases."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.sync import connect
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


@pytest.mark.parametrize(
    ("how", "ending", "status"),
    [
        ("async", "", 0),
        ("blocking", "1 / 0", 1),
        ("after a renewal", "raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_a_program_that_ends_with_a_lease_gives_it_up(
    tmp_path: Path, how: str, ending: str, status: int
) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    done = subprocess.run(
        [sys.executable, "-c", HOLD + ending, url, how],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    with connect(url) as client:
        assert client.lock("a").status().holders == ()


def test_a_store_that_is_gone_does_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "there" / "leases.db"
    path.parent.mkdir()
    source = HOLD + "import shutil; shutil.rmtree(sys.argv[1][10:].rsplit('/', 1)[0])"
    run_script(source, f"sqlite:///{path}", "blocking", timeout=15)
