"""Many processes on one file: order, kills, forks, and a log that stays small."""

import os
import signal
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Granted, Inspect, Refused, Release, Released
from dibs.stores.sqlite import connection, maintenance
from tests.stores.sides import in_child
from tests.stores.sqlite_help import Opened, acquire, rows

pytestmark = pytest.mark.multiprocess

X, Y = b"lock:x", b"lock:y"


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


KEYS = "SELECT count(*) FROM lease_keys"


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
