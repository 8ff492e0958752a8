"""Many processes on one file: order, kills, forks, and a log that stays small."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dibs.model import Granted, Inspect, Refused, Release
from tests.stores.sqlite_help import acquire, blocking, run

KEY = b"lock:x"

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


PREAMBLE = """
import sys
sys.path.insert(0, {root!r})
from tests.stores.sqlite_help import *
from dibs.model import *
from pathlib import Path
path = Path(sys.argv[1])
"""


def process(program: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a program of its own; its first argument is the file, `path` to it."""
    text = PREAMBLE.format(root=str(Path(__file__).parents[2])) + program
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: "subprocess.Popen[str]", seconds: float = 60) -> str:
    """Wait for a program to end well, and return what it printed."""
    out, err = started.communicate(timeout=seconds)
    assert started.returncode == 0, err
    assert not err, err
    return out


KILLED = """
import os, signal
backend = blocking(path)
run(backend.apply([acquire(b"lock:kept", "kept")]))
db = backend._connection._db
db.set_trace_callback(lambda statement: statement == "COMMIT" and os.kill(os.getpid(), signal.SIGKILL))
run(backend.apply([acquire(b"lock:lost", "lost"), Release(b"lock:kept", "kept")]))
"""


def test_killed_in_the_middle_of_a_transaction(path: Path) -> None:
    backend = blocking(path)
    killed = process(KILLED, path)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    kept, lost = run(backend.apply([Inspect(b"lock:kept"), Inspect(b"lock:lost")]))
    assert [holder.owner for holder in kept.holders] == ["owner of kept"]
    assert lost.holders == ()
    assert isinstance(run(backend.apply([acquire(b"lock:lost", "mine")]))[0], Granted)
    run(backend.close())


SHORT_LIVED = """
backend = blocking(path)
[granted] = run(backend.apply([acquire(b"lock:x", "short", ttl=0.3)]))
assert isinstance(granted, Granted)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_units_of_a_killed_holder_pass_on_at_its_expiry(path: Path) -> None:
    backend = blocking(path)
    holder = process(SHORT_LIVED, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate(timeout=30)
    [reply] = run(backend.apply([acquire(KEY, "next")]))
    end = time.monotonic() + 10
    while isinstance(reply, Refused) and time.monotonic() < end:
        assert 0 < reply.recheck_in <= 0.3
        run(backend.notifications(reply.recheck_in))
        [reply] = run(backend.apply([acquire(KEY, "next")]))
    assert isinstance(reply, Granted)
    run(backend.close())


LOCKS = """
def locks():
    ino, lines = path.stat().st_ino, Path("/proc/locks").read_text().splitlines()
    return sum(f":{ino} " in line and f" {os.getpid()} " in line for line in lines)
"""

# What SQLite knows of locks is of the parent: a child that believed it could lose its file underfoot.
FORKED = (
    """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
backend = blocking(path)
other = blocking(path)
run(backend.apply([acquire(b"lock:x", "parent")]))
"""
    + LOCKS
    + """
before = locks()
assert before > 0
child = os.fork()
if not child:
    try:
        backend.after_fork()
        backend.after_fork()
        assert locks() == 0, "nothing is inherited"
        own = blocking(path)
        assert locks() == before, "the child's own connection is protected by locks of its own"
        assert isinstance(run(own.apply([acquire(b"lock:x", "child")]))[0], Refused)
        assert isinstance(run(own.apply([acquire(b"lock:y", "child")]))[0], Granted)
        run(own.close())
        [again] = run(backend.apply([acquire(b"lock:y", "other")]))
        assert isinstance(again, Refused), "an inherited backend connects anew"
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert locks() == before, "the parent's locks are as they were"
assert Path(f"{path}-wal").exists() and Path(f"{path}-shm").exists()
assert isinstance(run(other.apply([acquire(b"lock:x", "again")]))[0], Refused)
assert run(backend.apply([Release(b"lock:x", "parent")])) == [Released()]
run(backend.close())
run(other.close())
assert not Path(f"{path}-wal").exists()
"""
)


def test_a_fork_of_a_process_with_connections(path: Path) -> None:
    finish(process(FORKED, path))


BUSY_FORKS = """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
backends = [blocking(path) for _ in range(2)]
stop = False
def work(backend, number):
    n = 0
    while not stop:
        n += 1
        key = b"lock:%d" % number
        assert isinstance(run(backend.apply([acquire(key, f"{number}-{n}")]))[0], Granted)
        assert run(backend.apply([Release(key, f"{number}-{n}")])) == [Released()]
threads = [threading.Thread(target=work, args=pair) for pair in zip(backends, range(2))]
for thread in threads: thread.start()
for _ in range(40):
    child = os.fork()
    if not child:
        own = blocking(path)
        lease = f"child-{os.getpid()}"
        ok = isinstance(run(own.apply([acquire(b"lock:c", lease)]))[0], Granted)
        ok = ok and run(own.apply([Release(b"lock:c", lease)])) == [Released()]
        run(own.close())
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads: thread.join()
for backend in backends: run(backend.close())
import sqlite3
db = sqlite3.connect(path)
assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
db.close()
"""


def test_forks_while_other_threads_commit(path: Path) -> None:
    finish(process(BUSY_FORKS, path))


TORN = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from dibs.stores.sqlite import connection
from dibs.errors import BackendUnavailable
connection.FORK_WAIT = 0.1
backend = blocking(path)
with backend._connection.lock:
    backend._connection._db.execute("BEGIN IMMEDIATE")
    child = os.fork()
    if not child:
        try:
            blocking(path)
        except BackendUnavailable as error:
            os._exit(0 if "forked amid a transaction" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    backend._connection._db.execute("COMMIT")
assert isinstance(run(backend.apply([acquire(b"lock:x", "a")]))[0], Granted)
run(backend.close())
"""


def test_a_fork_amid_a_transaction_is_refused_in_the_child(path: Path) -> None:
    finish(process(TORN, path))


# ---- the log --------------------------------------------------------------------------------------

LOADER = """
import asyncio, time
from dibs.stores.sqlite import SqliteStore
number, seconds, kind = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

async def load():
    mode = "blocking" if kind == "blocking" else "async"
    backend = connection_to(SqliteStore(url_of(path)), mode)
    await backend.open()
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += 1
        keys = [b"lock:%d-%d" % (number, n * 8 + k) for k in range(8)]
        for commands in (
            [acquire(key, key.decode(), note="x" * 200) for key in keys],
            [Release(key, key.decode()) for key in keys],
        ):
            await backend.apply(commands)
    await backend.close()
    return n

n = run(load()) if kind == "blocking" else asyncio.run(load())
print(n)
"""


@pytest.mark.serial
def test_the_log_stays_small_and_idle_keys_go(path: Path) -> None:
    """Three processes write without a pause, and a fourth keeps the file open."""
    keeper = blocking(path)
    log, largest = Path(f"{path}-wal"), 0
    kinds = ["blocking", "loop", "loop"]
    loaders = [process(LOADER, path, n, 2.0, kind) for n, kind in enumerate(kinds)]
    while any(loader.poll() is None for loader in loaders):
        largest = max(largest, log.stat().st_size)
        time.sleep(0.01)
    cycles = sum(int(finish(loader)) for loader in loaders)
    assert cycles > 200
    assert largest < 192 << 20
    [(rows,)] = keeper._connection.read("SELECT count(*) FROM lease_keys")
    assert rows < 8 * cycles / 2
    assert rows < 10_000
    run(keeper.close())


def test_programs_that_take_one_lease_clean_up_too(path: Path) -> None:
    keeper: Any = blocking(path)
    for n in range(1500):
        backend = blocking(path)
        run(backend.apply([acquire(b"lock:%d" % n, "a"), Release(b"lock:%d" % n, "a")]))
        run(backend.close())
    [(rows,)] = keeper._connection.read("SELECT count(*) FROM lease_keys")
    assert rows < 1000
    assert Path(f"{path}-wal").stat().st_size < 8 << 20
    run(keeper.close())
