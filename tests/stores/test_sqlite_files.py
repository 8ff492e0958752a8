"""The file of a SQLite store: who may use it, what is wrong with it, and its upkeep."""

import logging
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, Corrupt, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Command, Failed, Granted, Inspect, Refused, Release, Released, Renew, Renewed
from dibs.stores.sqlite import SqliteStore, file, maintenance
from dibs.testing import ManualClock
from tests.server.world import World
from tests.stores.sqlite_help import Opened, acquire, rows

KEY = b"lock:x"

type Open = Callable[..., Opened]


@pytest.fixture
def open_file(path: Path) -> Iterator[Open]:
    """Open the file, or another one, until the test ends."""
    made: list[Opened] = []

    def opened(where: Path = path, options: str = "", **more: Any) -> Opened:
        made.append(Opened(where, options, **more))
        return made[-1]

    yield opened
    for each in made:
        each.close()


# ---- the place ------------------------------------------------------------------------------------


def test_file_and_folder_are_made_for_this_user_only(tmp_path: Path, open_file: Open) -> None:
    path = tmp_path / "new/folder" / "leases.db"
    open_file(path).say(acquire(KEY, "a"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        assert name.stat().st_mode & 0o777 == 0o600, name


@pytest.mark.parametrize(
    ("mode", "folder", "level"),
    [(0o660, 0o770, "ok"), (0o604, 0o700, "warning"), (0o600, 0o777, "warning"),
     (0o600, 0o1777, "ok")],
)  # fmt: skip
def test_doctor_warns_of_a_file_that_others_can_use(
    path: Path, mode: int, folder: int, level: str, open_file: Open
) -> None:
    path.touch()
    path.chmod(mode)
    path.parent.chmod(folder)
    found = {each.about: each.level for each in open_file().connection.examine()}
    assert found["permissions"] == level
    assert path.stat().st_mode & 0o777 == mode, "what somebody has set is left as it is"


def test_serve_warns_of_a_file_that_others_can_use(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.touch()
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING, "dibs.server"):
        World.over(tmp_path).close()
    assert "leases.db has mode 0666: every user of this machine can use it" in caplog.text


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt rw - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/local rw - xfs /dev/sdb rw
32 22 0:41 / /with\\040blank rw - fuse.sshfs me@host: rw
33 22 0:42 / /covered rw - ext4 /dev/sdc rw
34 22 0:43 / /covered rw - cifs //server/share rw
"""


def test_files_on_network_file_systems(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_file: Open
) -> None:
    table = path.with_name("mountinfo")
    table.write_text(MOUNTS)
    monkeypatch.setattr(file, "MOUNTS", table)
    kinds = {
        "/mnt/a.db": "nfs4",
        "/mntx/a.db": "ext4",
        "/mnt/local/a.db": "xfs",
        "/with blank/a.db": "fuse.sshfs",
        "/covered/a.db": "cifs",
    }
    assert {path: file.file_system_of(path) for path in kinds} == kinds
    table.write_text(f"22 1 8:1 / {path.parent} rw - nfs server:/ rw\n")
    with pytest.raises(NotConfigured, match=r"network file system \(nfs\).*unsafe_network_fs=1"):
        open_file()
    assert not path.exists()
    open_file(options="?unsafe_network_fs=1")


def test_a_file_that_may_only_be_read(tmp_path: Path, path: Path, open_file: Open) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    open_file().close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    become = os.geteuid() == 0
    if become:
        os.seteuid(65534)
    try:
        with pytest.raises(Forbidden, match="give this user write access"):
            open_file()
    finally:
        if become:
            os.seteuid(0)
        tmp_path.chmod(0o755)


def test_a_path_where_no_file_can_be(tmp_path: Path, open_file: Open) -> None:
    with pytest.raises(NotConfigured, match="is a directory"):
        open_file(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotConfigured, match="is no folder"):
        open_file(tmp_path / "file" / "leases.db")
    for link in ("dangling", "loop"):
        (tmp_path / link).symlink_to(tmp_path / link.replace("dangling", "nowhere"))
        with pytest.raises(NotConfigured, match=r"a symbolic link to .*, where no file is"):
            open_file(tmp_path / link)


# ---- what lies in it ------------------------------------------------------------------------------


def test_a_file_that_is_no_database(path: Path, open_file: Open) -> None:
    path.write_bytes(b"A letter to my aunt. " * 500)
    with pytest.raises(Corrupt, match=f"{path} is not a SQLite database.*check the path"):
        open_file()
    assert path.read_bytes().startswith(b"A letter"), "somebody's file is left as it is"
    path.unlink()
    open_file().close()
    rows(path, "DELETE FROM lease_meta")
    with pytest.raises(Corrupt, match="no readable format number"):
        open_file()


def test_a_file_that_was_damaged(path: Path, open_file: Open) -> None:
    first = open_file()
    first.apply([acquire(b"lock:%d" % n, f"id{n}") for n in range(500)])
    first.close()
    whole = path.read_bytes()
    user = open_file()
    path.write_bytes(whole[:2048] + os.urandom(len(whole) - 2048))
    with pytest.raises(Corrupt, match="nothing is granted"):
        user.apply([acquire(b"lock:%d" % n, "other") for n in range(500)])
    path.write_bytes(whole)
    refused = user.say(acquire(b"lock:7", "other"))
    assert isinstance(refused, Refused), "the connection replaced itself"


def test_a_newer_format_is_left_alone(path: Path, open_file: Open) -> None:
    user = open_file()
    user.say(acquire(KEY, "a"))
    rows(path, "UPDATE lease_meta SET format = 2")
    message = r"has format 2, and this release \(dibs [\d.]+\) reads format 1"
    for command in (acquire(b"lock:y", "b"), Release(KEY, "a")):
        with pytest.raises(IncompatibleVersion, match=message):
            user.say(command)
    with pytest.raises(IncompatibleVersion, match=message):
        open_file()
    rows(path, "UPDATE lease_meta SET format = 1")
    assert user.say(Release(KEY, "a")) == Released()
    assert isinstance(user.say(acquire(b"lock:y", "c")), Granted), "was not granted"


@pytest.mark.parametrize(
    "damage",
    [
        "arrivals = 'many'",
        "due = 'soon', expires = 'later'",
        "slots = 'x,y'",
        "owner = CAST(x'ff' AS TEXT)",
    ],
)
def test_a_bad_key_costs_nobody_else_a_lease(
    path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, open_file: Open
) -> None:
    monkeypatch.setattr(maintenance, "AT_CLOSE", 1.0)  # which looks at that key as well
    user = open_file()
    user.apply([acquire(b"lock:%d" % n, f"id{n}") for n in range(3)])
    rows(path, f"UPDATE lease_keys SET {damage} WHERE key = CAST('lock:1' AS BLOB)")
    batch: list[Command] = [
        acquire(b"lock:new", "n"),
        Renew(b"lock:0", "id0", 30.0),
        acquire(b"lock:1", "other", queue=True),
        Inspect(b"lock:1"),
        Renew(b"lock:2", "id2", 30.0),
    ]
    granted, renewed, *failed, also_renewed = user.apply(batch)
    assert isinstance(granted, Granted)
    assert isinstance(renewed, Renewed)
    assert isinstance(also_renewed, Renewed)
    assert "corrupt" in {reply.reason for reply in failed if isinstance(reply, Failed)}
    assert not any(isinstance(reply, Granted) for reply in failed)
    again = user.say(acquire(b"lock:new", "m"))
    assert isinstance(again, Refused), "what was granted beside it was committed"


@pytest.mark.parametrize("name", ["leases.db", "leases.db-shm"])
def test_a_file_deleted_in_use(path: Path, name: str, open_file: Open) -> None:
    clock = ManualClock()
    user = open_file(clock=clock)
    user.say(acquire(KEY, "a"))
    path.with_name(name).unlink()
    clock.advance(1.1)
    with pytest.raises(BackendUnavailable, match="was deleted or replaced while it was in use"):
        user.say(Renew(KEY, "a", 30.0))
    assert isinstance(user.say(acquire(b"lock:y", "b")), Granted), "in the new file"


# ---- a full disk ----------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(tmp_path: Path, path: Path, open_file: Open) -> None:
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this sandbox can't mount")
    try:
        user = open_file()
        user.say(acquire(KEY, "a"))
        stuffing = tmp_path / "stuffing"
        with suppress(OSError), stuffing.open("wb", 0) as stuff:
            while True:
                stuff.write(b"x" * 512)
        with pytest.raises(BackendUnavailable, match=r"the disk under .* is full"):
            for n in range(100_000):
                user.say(acquire(b"lock:%d" % n, f"id{n}", note="x" * 400))
        stuffing.unlink()
        assert isinstance(user.say(acquire(KEY, "b")), Refused)
        user.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# ---- boots ----------------------------------------------------------------------------------------


def test_what_another_boot_left_is_observed(open_file: Open) -> None:
    old = open_file(clock=ManualClock(now=500_000.0), boot="one")
    old.apply([acquire(KEY, "a", ttl=10.0), acquire(KEY, "q", queue=True, waiter_ttl=20.0)])
    old.apply([acquire(b"lock:y", "c", ttl=60.0), Release(b"lock:z", "late", tombstone=60.0)])
    old.close()
    clock = ManualClock(now=3.0)
    new = open_file(clock=clock, boot="two")
    clock.advance(10.0)
    assert isinstance(new.say(acquire(KEY, "b")), Refused), "not dead yet"
    clock.advance(0.2)
    assert isinstance(new.say(Renew(KEY, "q", 30.0)), Granted), "the queue goes on"
    assert isinstance(new.say(acquire(b"lock:y", "b")), Refused)
    clock.advance(50.5)
    assert isinstance(new.say(acquire(b"lock:y", "b")), Granted)


def test_two_living_boots_are_an_error(open_file: Open) -> None:
    clock = ManualClock()
    one = open_file(clock=clock, boot="one")
    one.say(acquire(KEY, "a"))
    two = open_file(clock=clock, boot="two")
    assert isinstance(two.say(acquire(KEY, "b")), Refused)
    for command in (acquire(b"lock:y", "c"), Renew(KEY, "a", 30.0)):
        with pytest.raises(BackendUnavailable, match="two living boots"):
            one.say(command)
    assert isinstance(two.say(acquire(b"lock:y", "d")), Granted)


def test_making_the_file_never_closes_it_under_another_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POSIX: closing any descriptor of a file drops all locks that the process has on it."""
    closed: list[tuple[int, int]] = []
    close = os.close

    def watch(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if path.exists():
            closed.append((status.st_dev, status.st_ino))
        close(descriptor)

    monkeypatch.setattr(os, "close", watch)
    connections = [SqliteStore(f"sqlite:///{path}").blocking_connection() for _ in range(4)]
    threads = [threading.Thread(target=each.open, args=(10,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = path.stat()
    assert (named.st_dev, named.st_ino) not in closed
    assert [each.name for each in path.parent.iterdir() if "-" not in each.name] == ["leases.db"]
    monkeypatch.undo()
    for each in connections:
        each.close()


# ---- upkeep: what deleting a key does to its users is compared with memory in `test_ledgers.py` ----


def cycles(user: Opened, count: int) -> None:
    """Use so many keys once."""
    for n in range(count):
        user.apply([acquire(b"lock:%03d" % n, "a"), Release(b"lock:%03d" % n, "a")])


def test_what_has_ended_is_settled_for_those_who_wait(open_file: Open) -> None:
    clock = ManualClock()
    user = open_file(clock=clock)
    user.say(acquire(KEY, "dead", ttl=2.0))
    waiter = acquire(KEY, "w", queue=True, inbox="somewhere")
    user.say(waiter)
    clock.advance(2.5)
    [push] = maintenance.maintain(user.connection._connection)
    assert (push.event, push.lease, push.inbox) == ("granted", fingerprint("w"), "somewhere")
    assert isinstance(user.say(waiter), Granted)


def test_a_large_log_is_emptied_and_a_reader_only_delays_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_file: Open
) -> None:
    monkeypatch.setattr(maintenance, "LARGE_LOG", 50_000)
    monkeypatch.setattr(maintenance, "TRIES", 3)
    user = open_file()
    log = Path(f"{path}-wal")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM lease_keys").fetchall()
    cycles(user, 200)
    maintenance.maintain(user.connection._connection)
    assert log.stat().st_size > 50_000, "somebody reads what lies in it"
    assert isinstance(user.say(acquire(KEY, "b")), Granted)
    reader.close()
    maintenance.maintain(user.connection._connection)
    assert log.stat().st_size <= 50_000
