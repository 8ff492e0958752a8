"""How a process ends, and what becomes of its leases and terms."""

import signal
import sys
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.cli.processes import Cli, end, line
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
    with Cli(tmp_path) as programs:
        program = [sys.executable, "-c", HOLD + ending]
        code, _, err = end(programs.start(programs.url, how, program=program))
        assert code == status, err
        assert not programs.status("a").holders


def test_a_store_that_is_gone_does_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "there" / "leases.db"
    path.parent.mkdir()
    source = HOLD + "import shutil; shutil.rmtree(sys.argv[1][10:].rsplit('/', 1)[0])"
    run_script(source, f"sqlite:///{path}", "blocking", timeout=15)


AFTER_THE_MAIN_THREAD = """
import asyncio, sys, threading
import dibs, dibs.sync

client = dibs.sync.connect(sys.argv[1])

def late():
    threading.main_thread().join()
    both = dibs.sync.AllOf(client.lock("a"), client.lock("b"))
    in_loop = lambda: asyncio.run(dibs.connect(sys.argv[1]).lock("a").acquire())
    for acquire in (client.lock("a").acquire, both.acquire, in_loop):
        try:
            acquire()
        except dibs.DibsError as error:
            print(error)
    print(client.lock("a").status().holders, client.lock("b").status().holders)

threading.Thread(target=late).start()
threading.stack_size(1 << 46)  # no more threads can start: some versions of Python refuse here by themselves
"""


def test_nothing_is_acquired_if_the_threads_for_it_cannot_start(url: str) -> None:
    *errors, holders = run_script(AFTER_THE_MAIN_THREAD, url)
    assert len(errors) == 3
    for error in errors:
        assert error.startswith(
            "nothing was acquired, because the thread that renews leases did not"
        )
        assert error.endswith(": join your threads before the main thread ends")
    assert holders == "() ()"


LEADING = """
import sys, time, dibs.sync

def lead(term):
    print("leads", flush=True)
    time.sleep(60)

with dibs.sync.connect(sys.argv[1]) as client:
    print(client.leader_election("main").run(lead), flush=True)
"""


@pytest.mark.once
def test_sigterm_ends_a_leader_which_hands_over(tmp_path: Path) -> None:
    """`tests/how_to/test_pages.py` does the same in an event loop."""
    with Cli(tmp_path) as programs, connect(programs.url) as client:
        leader = programs.start(LEADING, programs.url, program=[sys.executable, "-c"])
        assert line(leader) == "leads"
        leader.terminate()
        assert end(leader) == (0, "None\n", "")
        assert client.leader_election("main").who() is None, "it has handed over"
