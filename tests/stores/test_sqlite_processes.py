"""Many processes on one file: order, kills, forks, and a log that stays small."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Granted, Inspect, Refused, Release, Released
from dibs.stores.sqlite import connection, maintenance
from tests.stores.sides import in_child
from tests.stores.sqlite_help import Opened, acquire, rows

pytestmark = pytest.mark.multiprocess

X, Y = b"lock:x", b"lock:y"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def test_killed_in_the_middle_of_a_transaction(path: Path) -> None:
    def be_killed() -> None:
        user = Opened(path)
        user.say(acquire(X, "kept"))

        def look(statement: str) -> None:
            if statement == "COMMIT":
                os.kill(os.getpid(), signal.SIGKILL)

        user.connection._connection._db.set_trace_callback(look)
        user.apply([acquire(Y, "lost"), Release(X, "kept")])

    survivor = Opened(path)
    in_child(be_killed, ends=-signal.SIGKILL)
    kept, lost = survivor.apply([Inspect(X), Inspect(Y)])
    assert [holder.owner for holder in kept.holders] == ["owner of kept"]
    assert lost.holders == ()
    assert isinstance(survivor.say(acquire(Y, "mine")), Granted)
    survivor.close()


def locks(path: Path) -> int:
    """How many locks this process has on the file."""
    ino, lines = path.stat().st_ino, Path("/proc/locks").read_text().splitlines()
    return sum(f":{ino} " in line and f" {os.getpid()} " in line for line in lines)


def test_a_fork_of_a_process_with_connections(path: Path) -> None:
    """What SQLite knows of locks is of the parent: the child's file could be lost underfoot."""
    user, other = Opened(path), Opened(path)
    user.say(acquire(X, "parent"))
    before = locks(path)
    assert before > 0

    def use_it_too() -> None:
        user.after_fork()
        assert locks(path) == 0, "nothing is inherited"
        own = Opened(path)
        assert locks(path) == before, "the child's own connection has locks of its own"
        assert isinstance(own.say(acquire(X, "child")), Refused)
        assert isinstance(own.say(acquire(Y, "child")), Granted)
        own.close()
        again = user.say(acquire(Y, "other"))
        assert isinstance(again, Refused), "an inherited connection connects anew"

    in_child(use_it_too)
    assert locks(path) == before, "the parent's locks are as they were"
    assert Path(f"{path}-wal").exists()
    assert isinstance(other.say(acquire(X, "again")), Refused)
    assert user.say(Release(X, "parent")) == Released()
    user.close()
    other.close()
    assert not Path(f"{path}-wal").exists(), "the last one out puts the log away"


def cycle(user: Opened, key: bytes, lease: str) -> None:
    assert isinstance(user.say(acquire(key, lease)), Granted)
    assert user.say(Release(key, lease)) == Released()


def test_forks_while_other_threads_commit(path: Path) -> None:
    over = threading.Event()
    errors: list[BaseException] = []
    users = [Opened(path) for _ in range(2)]

    def work(user: Opened, key: bytes) -> None:
        n = 0
        try:
            while not over.is_set():
                n += 1
                cycle(user, key, f"{n}")
        except BaseException as error:
            errors.append(error)

    def work_once() -> None:
        own = Opened(path)
        cycle(own, b"lock:child", f"child-{os.getpid()}")
        own.close()

    pairs = zip(users, (X, Y), strict=True)
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            in_child(work_once)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert errors == []
    for user in users:
        user.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_fork_amid_a_transaction_is_refused_in_the_child(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FORK_WAIT", 0.1)
    user = Opened(path)
    inner = user.connection._connection

    def open_it() -> None:
        with pytest.raises(BackendUnavailable, match="forked during a transaction"):
            Opened(path)

    with inner.lock:
        inner._db.execute("BEGIN IMMEDIATE")
        in_child(open_it)
        inner._db.execute("COMMIT")
    cycle(user, X, "a")
    user.close()


# ---- the log; what one process does about it is in `test_sqlite_files.py` --------------------------

KEYS = "SELECT count(*) FROM lease_keys"
LOADER = """
import os, sys, time
from pathlib import Path
from dibs.model import Release
from tests.stores.sqlite_help import Opened, acquire
user, end, n = Opened(Path(sys.argv[1])), time.monotonic() + 2, 0
while time.monotonic() < end:
    n += 1
    keys = [b"lock:%d-%d" % (os.getpid(), n * 8 + k) for k in range(8)]
    user.apply([acquire(key, key.decode(), note="x" * 200) for key in keys])
    user.apply([Release(key, key.decode()) for key in keys])
user.close()
assert n > 50
"""


@pytest.mark.long
def test_the_log_stays_small_and_idle_keys_go(path: Path) -> None:
    """Three processes write without a pause, and a fourth keeps the file open."""
    keeper = Opened(path)
    log, largest = Path(f"{path}-wal"), 0
    command = [sys.executable, "-c", LOADER, str(path)]
    loaders = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(3)]
    while any(loader.poll() is None for loader in loaders):
        largest = max(largest, log.stat().st_size)
        time.sleep(0.01)
    assert [loader.returncode for loader in loaders] == [0, 0, 0]
    assert largest < 192 << 20
    assert rows(path, KEYS)[0][0] < 10_000
    keeper.close()


def test_programs_that_take_one_lease_clean_up_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AT_CLOSE", 1 / 8)
    keeper = Opened(path)
    for n in range(200):
        user = Opened(path)
        cycle(user, b"lock:%d" % n, "a")
        user.close()
    assert rows(path, KEYS)[0][0] < 160
    keeper.close()
