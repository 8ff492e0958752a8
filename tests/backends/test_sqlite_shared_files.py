"""What the files of a database must survive: being made, and being taken away piece by piece."""

import os
import threading
from pathlib import Path

import pytest

from dibs.backends.sqlite import SqliteStore
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted
from dibs.runtime.step import step
from dibs.testing import ManualClock

KEY = b"lock:a"


def test_a_deleted_shared_memory_is_noticed(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = SqliteStore(f"sqlite:///{tmp_path}/leases.db", clock=clock).backend(blocking=True)
    step(backend.open())
    (granted,) = step(backend.apply([Acquire(KEY, "one", "me", 30.0)]))
    assert isinstance(granted, Granted)
    (tmp_path / "leases.db-shm").unlink()
    clock.advance(2)
    with pytest.raises(BackendUnavailable, match="deleted or replaced"):
        step(backend.apply([Acquire(b"lock:b", "two", "me", 30.0)]))
    step(backend.close())


def test_making_the_file_never_closes_it_under_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POSIX: closing any descriptor of a file drops all locks that the process has on it."""
    path = tmp_path / "leases.db"
    closed: list[tuple[int, int]] = []
    close = os.close

    def watch(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if path.exists():
            closed.append((status.st_dev, status.st_ino))
        close(descriptor)

    monkeypatch.setattr(os, "close", watch)
    backends = [SqliteStore(f"sqlite:///{path}").backend(blocking=True) for _ in range(4)]
    threads = [threading.Thread(target=lambda b=b: step(b.open(listen=False))) for b in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = path.stat()
    assert (named.st_dev, named.st_ino) not in closed
    assert sorted(each.name for each in tmp_path.iterdir() if "-" not in each.name) == ["leases.db"]
    monkeypatch.undo()
    for backend in backends:
        step(backend.close())
