"""The file of a SQLite store as the system has it: its permissions, and links that lead nowhere."""

import logging
import os
import threading
from pathlib import Path

import pytest

from dibs import connect
from dibs.errors import BackendUnavailable, NotConfigured
from dibs.model import Acquire, Granted
from dibs.runtime.port import step
from dibs.stores.sqlite import SqliteStore
from dibs.testing import ManualClock
from tests.connections import connection_to
from tests.server.world import World


async def levels(path: Path) -> dict[str, str]:
    async with connect(f"sqlite:///{path}") as client:
        return {each.about: each.level for each in await client.examine()}


@pytest.mark.parametrize(
    ("file", "folder", "level"),
    [(0o600, 0o700, "ok"), (0o660, 0o770, "ok"), (0o666, 0o700, "warning"), (0o604, 0o700, "warning"),
     (0o600, 0o777, "warning"), (0o600, 0o1777, "ok")],
)  # fmt: skip
async def test_doctor_warns_of_a_file_that_others_can_use(
    tmp_path: Path, file: int, folder: int, level: str
) -> None:
    path = tmp_path / "folder" / "leases.db"
    await levels(path)
    path.chmod(file)
    path.parent.chmod(folder)
    assert (await levels(path))["permissions"] == level


def test_serve_warns_of_a_file_that_others_can_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    World.over(tmp_path).close()
    assert "every user of this machine" not in caplog.text
    (tmp_path / "leases.db").chmod(0o666)
    with caplog.at_level(logging.WARNING, "dibs.server"):
        World.over(tmp_path).close()
    assert "leases.db has mode 0666: every user of this machine can use it" in caplog.text


@pytest.mark.parametrize("target", ["nowhere.db", "leases.db"], ids=["dangling", "a loop"])
async def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, target: str) -> None:
    path = tmp_path / "leases.db"
    path.symlink_to(tmp_path / target)
    with pytest.raises(NotConfigured, match=f"a symbolic link to .*{target}, where no file is"):
        await levels(path)


KEY = b"lock:a"


def test_a_deleted_shared_memory_is_noticed(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = connection_to(SqliteStore(f"sqlite:///{tmp_path}/leases.db", clock=clock), "blocking")
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
    backends = [connection_to(SqliteStore(f"sqlite:///{path}"), "blocking") for _ in range(4)]
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
