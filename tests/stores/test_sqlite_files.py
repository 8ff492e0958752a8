"""The file of a SQLite store: who may use it, what is wrong with it, and its upkeep."""

import logging
import os
import sqlite3
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import connect
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, Corrupt, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Acquire, Failed, Granted, Inspect, Refused, Release, Released, Renew, Renewed
from dibs.stores.sqlite import SqliteStore, file, maintenance
from dibs.testing import ManualClock
from tests.connections import connection_to
from tests.server.world import World
from tests.stores.differential import Time
from tests.stores.sqlite_help import acquire, blocking, run, url_of

KEY = b"lock:x"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def tamper(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


# ---- URLs -----------------------------------------------------------------------------------------


def test_a_relative_path_is_of_where_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("sqlite:///x.db")
    assert not (tmp_path / "x.db").exists(), "making a store touches nothing"
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    backend = connection_to(store, "blocking")
    run(backend.open())
    assert (tmp_path / "x.db").exists()
    run(backend.close())


# ---- the place ------------------------------------------------------------------------------------


def test_file_and_folder_are_made_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "new/folder" / "leases.db"
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a")]))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        assert name.stat().st_mode & 0o777 == 0o600, name
    run(backend.close())


def test_a_file_of_a_group_is_left_as_it_is(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    run(blocking(path).close())
    assert path.stat().st_mode & 0o777 == 0o660


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt rw - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/local rw - xfs /dev/sdb rw
32 22 0:41 / /with\\040blank rw - fuse.sshfs me@host: rw
33 22 0:42 / /covered rw - ext4 /dev/sdc rw
34 22 0:43 / /covered rw - cifs //server/share rw
"""


def test_files_on_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(file, "MOUNTS", table)
    kinds = {
        "/a.db": "ext4",
        "/mnt/a.db": "nfs4",
        "/mnt": "nfs4",
        "/mntx/a.db": "ext4",
        "/mnt/local/a.db": "xfs",
        "/with blank/a.db": "fuse.sshfs",
        "/covered/a.db": "cifs",
    }
    assert {path: file.file_system_of(path) for path in kinds} == kinds
    table.write_text(f"22 1 8:1 / {tmp_path} rw - nfs server:/ rw\n")
    path = tmp_path / "leases.db"
    with pytest.raises(NotConfigured, match=r"network file system \(nfs\).*unsafe_network_fs=1"):
        blocking(path)
    assert not path.exists()
    backend = connection_to(SqliteStore(f"{url_of(path)}?unsafe_network_fs=1"), "blocking")
    run(backend.open())
    run(backend.close())


def test_a_file_that_may_only_be_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    path = tmp_path / "leases.db"
    run(blocking(path).close())
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    become = os.geteuid() == 0
    if become:
        os.seteuid(65534)
    try:
        with pytest.raises(Forbidden, match="give this user write access"):
            blocking(path)
    finally:
        if become:
            os.seteuid(0)
        tmp_path.chmod(0o755)
    path.chmod(0o644)
    run(blocking(path).close())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="is a directory"):
        blocking(tmp_path)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(NotConfigured, match="is no folder"):
        blocking(tmp_path / "x" / "leases.db")


# ---- what lies in it ------------------------------------------------------------------------------


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"A letter to my aunt. " * 500)
    with pytest.raises(Corrupt, match=f"{path} is not a SQLite database.*check the path"):
        blocking(path)
    assert path.read_bytes().startswith(b"A letter"), "somebody's file is left as it is"
    path.unlink()
    run(blocking(path).close())


def test_a_file_that_was_damaged(path: Path) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(b"lock:%d" % n, f"id{n}") for n in range(500)]))
    run(backend.close())
    whole = path.read_bytes()
    backend = blocking(path)
    path.write_bytes(whole[:2048] + os.urandom(len(whole) - 2048))
    with pytest.raises(Corrupt, match="nothing is granted"):
        run(backend.apply([acquire(b"lock:%d" % n, "other") for n in range(500)]))
    path.write_bytes(whole)
    [refused] = run(backend.apply([acquire(b"lock:7", "other")]))
    assert isinstance(refused, Refused), "the connection replaced itself"
    run(backend.close())


def test_a_newer_format_is_left_alone(path: Path) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a")]))
    tamper(path, "UPDATE lease_meta SET format = 2")
    message = r"has format 2, and this release \(dibs [\d.]+\) reads format 1"
    with pytest.raises(IncompatibleVersion, match=message):
        run(backend.apply([acquire(b"lock:y", "b")]))
    with pytest.raises(IncompatibleVersion, match=message):
        run(backend.apply([Release(KEY, "a")]))
    with pytest.raises(IncompatibleVersion, match=message):
        blocking(path)
    tamper(path, "UPDATE lease_meta SET format = 1")
    assert run(backend.apply([Release(KEY, "a")])) == [Released()]
    assert isinstance(run(backend.apply([acquire(b"lock:y", "c")]))[0], Granted), "was not granted"
    run(backend.close())


def test_no_format_at_all(path: Path) -> None:
    run(blocking(path).close())
    tamper(path, "DELETE FROM lease_meta")
    with pytest.raises(Corrupt, match="no readable format number"):
        blocking(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE lease_keys SET arrivals = 'many' WHERE key = CAST('lock:1' AS BLOB)",
        "UPDATE lease_keys SET due = 'soon', expires = 'later' WHERE key = CAST('lock:1' AS BLOB)",
        "UPDATE lease_keys SET slots = 'x,y' WHERE key = CAST('lock:1' AS BLOB)",
        "UPDATE lease_keys SET owner = CAST(x'ff' AS TEXT) WHERE key = CAST('lock:1' AS BLOB)",
    ],
)
def test_a_bad_key_costs_nobody_else_a_lease(
    path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AT_CLOSE", 1.0)  # which looks at that key as well
    backend = blocking(path)
    run(backend.apply([acquire(b"lock:%d" % n, f"id{n}") for n in range(3)]))
    tamper(path, damage)
    batch = [
        acquire(b"lock:new", "n"),
        Renew(b"lock:0", "id0", 30.0),
        acquire(b"lock:1", "other", queue=True),
        Inspect(b"lock:1"),
        Renew(b"lock:2", "id2", 30.0),
    ]
    granted, renewed, *failed, also_renewed = run(backend.apply(batch))
    assert isinstance(granted, Granted)
    assert isinstance(renewed, Renewed)
    assert isinstance(also_renewed, Renewed)
    assert "corrupt" in {reply.reason for reply in failed if isinstance(reply, Failed)}
    assert not any(isinstance(reply, Granted) for reply in failed)
    [again] = run(backend.apply([acquire(b"lock:new", "m")]))
    assert isinstance(again, Refused), "what was granted beside it was committed"
    run(backend.close())


def test_a_file_deleted_in_use(path: Path) -> None:
    clock = Time()
    backend = blocking(path, clock=clock)
    run(backend.apply([acquire(KEY, "a")]))
    path.unlink()
    clock.advance(1.1)
    with pytest.raises(BackendUnavailable, match="was deleted or replaced while it was in use"):
        run(backend.apply([Renew(KEY, "a", 30.0)]))
    assert isinstance(run(backend.apply([acquire(KEY, "b")]))[0], Granted), "in the new file"
    assert path.exists()
    run(backend.close())


# ---- a full disk ----------------------------------------------------------------------------------


def fill(backend: Any) -> int:
    for n in range(100_000):
        run(backend.apply([acquire(b"lock:%d" % n, f"id{n}", note="x" * 400)]))
    raise AssertionError("it was never full")


def test_a_full_file(path: Path) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a")]))
    pages = backend._connection.read("PRAGMA page_count")[0][0]
    backend._connection.read(f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(BackendUnavailable, match=r"the disk under .* is full"):
        fill(backend)
    assert isinstance(run(backend.apply([Renew(KEY, "a", 30.0)]))[0], Renewed)
    run(backend.close())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(tmp_path: Path) -> None:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this sandbox can't mount")
    try:
        path = tmp_path / "leases.db"
        backend = blocking(path)
        run(backend.apply([acquire(KEY, "a")]))
        stuffing = tmp_path / "stuffing"
        with suppress(OSError), stuffing.open("wb", 0) as stuff:
            while True:
                stuff.write(b"x" * 512)
        with pytest.raises(BackendUnavailable, match="full"):
            fill(backend)
        stuffing.unlink()
        [refused] = run(backend.apply([acquire(KEY, "b")]))
        assert isinstance(refused, Refused)
        run(backend.close())
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# ---- boots ----------------------------------------------------------------------------------------


def test_what_another_boot_left_is_observed(path: Path) -> None:
    before, after = Time(time=500_000.0), Time(time=3.0)
    old = blocking(path, clock=before, boot="one")
    run(old.apply([acquire(KEY, "a", ttl=10.0), acquire(KEY, "q", queue=True, waiter_ttl=20.0)]))
    run(old.apply([acquire(b"lock:y", "c", ttl=60.0), Release(b"lock:z", "late", tombstone=60.0)]))
    run(old.close())
    new = blocking(path, clock=after, boot="two")
    after.advance(10.0)
    [refused] = run(new.apply([acquire(KEY, "b")]))
    assert isinstance(refused, Refused), "not dead yet"
    after.advance(0.2)
    [granted] = run(new.apply([Renew(KEY, "q", 30.0)]))
    assert isinstance(granted, Granted), "the queue goes on"
    [refused] = run(new.apply([acquire(b"lock:y", "b")]))
    assert isinstance(refused, Refused)
    after.advance(50.5)
    [granted] = run(new.apply([acquire(b"lock:y", "b")]))
    assert isinstance(granted, Granted)
    run(new.close())


def test_two_living_boots_are_an_error(path: Path) -> None:
    clock = Time()
    one = blocking(path, clock=clock, boot="one")
    run(one.apply([acquire(KEY, "a")]))
    two = blocking(path, clock=clock, boot="two")
    assert isinstance(run(two.apply([acquire(KEY, "b")]))[0], Refused)
    for command in (acquire(b"lock:y", "c"), Renew(KEY, "a", 30.0)):
        with pytest.raises(BackendUnavailable, match="two living boots"):
            run(one.apply([command]))
    [status] = run(two.apply([Inspect(b"lock:y")]))
    assert status.holders == ()
    run(one.close())
    run(two.close())


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


def test_a_deleted_shared_memory_is_noticed(tmp_path: Path) -> None:
    clock = ManualClock()
    connection = SqliteStore(f"sqlite:///{tmp_path}/leases.db", clock=clock).blocking_connection()
    connection.open(10)
    (granted,) = connection.apply([Acquire(KEY, "one", "me", 30.0)], 10)
    assert isinstance(granted, Granted)
    (tmp_path / "leases.db-shm").unlink()
    clock.advance(2)
    with pytest.raises(BackendUnavailable, match="deleted or replaced"):
        connection.apply([Acquire(b"lock:b", "two", "me", 30.0)], 10)
    connection.close()


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
    connections = [SqliteStore(f"sqlite:///{path}").blocking_connection() for _ in range(4)]
    threads = [threading.Thread(target=each.open, args=(10,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = path.stat()
    assert (named.st_dev, named.st_ino) not in closed
    assert sorted(each.name for each in tmp_path.iterdir() if "-" not in each.name) == ["leases.db"]
    monkeypatch.undo()
    for each in connections:
        each.close()


def keys(backend: Any) -> int:
    [(rows,)] = backend._connection.read("SELECT count(*) FROM lease_keys")
    return int(rows)


def cycle(backend: Any, key: bytes, lease: str, **more: Any) -> int:
    granted, _ = run(backend.apply([acquire(key, lease, **more), Release(key, lease)]))
    return int(granted.token)


def test_tokens_rise_though_the_key_and_the_time_are_gone(path: Path) -> None:
    clock = Time()
    backend = blocking(path, clock=clock)
    token = cycle(backend, b"lock:x", "a")
    for n in range(100):
        cycle(backend, b"lock:%d" % n, "a")
    assert keys(backend) == 101
    assert maintenance.maintain(backend._connection) == []
    assert keys(backend) == 0
    clock.wall -= 10**12
    run(backend.close())
    backend = blocking(path, clock=clock)
    assert cycle(backend, b"lock:x", "b") > token
    run(backend.close())


def test_a_connection_that_remembers_learns_of_the_sweep(path: Path) -> None:
    clock = Time()
    one, other = blocking(path, clock=clock), blocking(path, clock=clock)
    first = cycle(one, b"lock:x", "a")
    highest = cycle(one, b"lock:y", "a", floor=first + 10**9)
    other._connection.sweep([b"lock:x", b"lock:y"])
    assert keys(one) == 0
    assert cycle(one, b"lock:x", "b") > highest
    run(one.close())
    run(other.close())


def test_what_is_in_use_is_spared(path: Path) -> None:
    clock = Time()
    backend = blocking(path, clock=clock)
    run(backend.apply([acquire(b"lock:held", "h", ttl=1e6)]))
    run(backend.apply([Release(b"lock:buried", "late", tombstone=1e6)]))
    run(backend.apply([acquire(b"lock:kept", "k"), Release(b"lock:kept", "k", retain=1e6)]))
    for n in range(200):
        cycle(backend, b"lock:%d" % n, "a")
    maintenance.maintain(backend._connection)
    assert keys(backend) == 3
    run(backend.close())


def test_what_has_ended_is_settled_for_those_who_wait(path: Path) -> None:
    clock = Time()
    backend = blocking(path, clock=clock)
    run(backend.apply([acquire(b"lock:x", "dead", ttl=2.0)]))
    waiter = acquire(b"lock:x", "w", queue=True, inbox="somewhere")
    run(backend.apply([waiter]))
    clock.advance(2.5)
    [push] = maintenance.maintain(backend._connection)
    assert (push.event, push.lease, push.inbox) == ("granted", fingerprint("w"), "somewhere")
    assert isinstance(run(backend.apply([waiter]))[0], Granted)
    run(backend.close())


def test_a_large_table_is_swept_in_turns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHUNK", 100)
    monkeypatch.setattr(maintenance, "CHUNKS", 2)
    backend = blocking(path)
    for n in range(500):
        cycle(backend, b"lock:%03d" % n, "a")
    left = []
    for _ in range(4):
        maintenance.maintain(backend._connection)
        left.append(keys(backend))
    assert left == [300, 100, 0, 0]
    run(backend.close())


def test_a_large_log_is_emptied_and_a_reader_only_delays_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LARGE_LOG", 50_000)
    monkeypatch.setattr(maintenance, "TRIES", 3)
    monkeypatch.setattr(maintenance, "EVERY", 10**9)
    backend = blocking(path)
    log = backend._connection.file.log_size
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM lease_keys").fetchall()
    for n in range(200):
        cycle(backend, b"lock:%d" % n, "a")
    maintenance.maintain(backend._connection)
    assert log() > 50_000, "somebody reads what lies in it"
    assert cycle(backend, b"lock:x", "b") > 0
    reader.close()
    maintenance.maintain(backend._connection)
    assert log() <= 50_000
    run(backend.close())
