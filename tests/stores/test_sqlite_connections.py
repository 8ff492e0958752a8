"""Connections to a SQLite file: in place, in one statement, by datagrams, and their end."""

import asyncio
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dibs import connect
from dibs.errors import BackendUnavailable
from dibs.model import Command, Granted, Inspect, Notification, Refused, Release, Released, Renew
from dibs.stores.sqlite import SqliteStore, maintenance, notify
from tests.connections import connection_to
from tests.servers.waiting import wait_until
from tests.stores.sqlite_help import Opened, acquire, rows

KEY = b"lock:x"


async def looped(path: Path, options: str = "", **more: Any) -> Any:
    connection = connection_to(SqliteStore(f"sqlite:///{path}{options}", **more), "async")
    await connection.open()
    return connection


def in_place(connection: Any, command: Command) -> Any:
    """The reply that comes before `submit` returns; None: it comes later, and is given up."""
    replies = connection.now([command])
    return None if replies is None else replies[0]


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process that writes from its BEGIN on."""
    found = sqlite3.connect(path, isolation_level=None)
    yield found
    found.close()


async def test_the_loop_uses_the_file_in_place_while_nobody_else_writes(
    path: Path, writer: sqlite3.Connection
) -> None:
    user = await looped(path)
    assert isinstance(in_place(user, acquire(KEY, "a")), Granted)
    assert isinstance(in_place(user, acquire(KEY, "b")), Refused)
    assert in_place(user, Release(KEY, "a")) == Released()
    writer.execute("BEGIN IMMEDIATE")
    before = time.perf_counter()
    assert in_place(user, acquire(KEY, "given up")) is None
    assert time.perf_counter() - before < 0.05
    waiting = asyncio.ensure_future(user.apply([acquire(KEY, "a")]))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    writer.execute("COMMIT")
    [granted] = await asyncio.wait_for(waiting, 5)
    assert isinstance(granted, Granted)
    await user.close()


async def test_a_file_locked_for_too_long_is_said_to_be(
    path: Path, writer: sqlite3.Connection
) -> None:
    user, thread = await looped(path, "?timeout=0.1"), Opened(path, "?timeout=0.1")
    writer.execute("BEGIN IMMEDIATE")
    message = rf"another process kept {path} locked for 0.1 s"
    with pytest.raises(BackendUnavailable, match=message):
        await user.apply([acquire(KEY, "a")])
    with pytest.raises(BackendUnavailable, match=message):
        thread.say(acquire(KEY, "a"))
    writer.execute("ROLLBACK")
    assert isinstance((await user.apply([acquire(KEY, "a")]))[0], Granted)
    await user.close()
    thread.close()


async def test_what_nobody_waits_for_any_more_is_not_tried_for_ever(
    path: Path, writer: sqlite3.Connection
) -> None:
    user = await looped(path)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(user.apply([acquire(KEY, "a")]), 0.05)
    await asyncio.sleep(0.1)  # more than the longest pause between two tries
    writer.execute("ROLLBACK")
    await asyncio.sleep(0.05)
    [status] = await user.apply([Inspect(KEY)])
    assert status.holders == ()
    await user.close()


def test_a_batch_is_committed_once_and_a_key_used_before_takes_one_statement(path: Path) -> None:
    user = Opened(path)
    told: list[str] = []
    db: Any = user.connection._connection._db
    db.set_trace_callback(lambda text: told.append(text.split()[0]))
    user.apply([acquire(b"lock:%d" % n, "a") for n in range(64)])
    assert told.count("COMMIT") == 1
    told.clear()
    for command in (Renew(b"lock:0", "a", 30.0), Release(b"lock:0", "a"), acquire(b"lock:0", "b")):
        user.say(command)
    assert told == ["UPDATE"] * 3
    user.close()


async def test_upkeep_of_a_loop_goes_on_beside_its_commands(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EVERY", 400)
    user = await looped(path)
    for n in range(200):
        assert in_place(user, acquire(b"lock:%d" % n, "a"))
        assert in_place(user, Release(b"lock:%d" % n, "a"))
    left = "SELECT count(*) FROM lease_keys"
    wait_until(lambda: rows(path, left) == [(0,)], "idle keys are deleted")
    await user.close()


async def test_a_dead_inbox_is_no_error(path: Path) -> None:
    user = Opened(path)
    for number, inbox in enumerate(["dibs-gone", "/nowhere/at/all", "x" * 200, "/nul\0nul"]):
        key = b"lock:%d" % number
        user.say(acquire(key, "a"))
        user.say(acquire(key, "b", queue=True, inbox=inbox))
        assert user.say(Release(key, "a")) == Released()
    user.close()


def test_a_transaction_that_was_left_open_is_undone_first(path: Path) -> None:
    one, other = Opened(path), Opened(path)
    one.apply([acquire(KEY, "a"), Release(KEY, "a")])
    db: Any = one.connection._connection._db
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE lease_keys SET last = 0")
    assert isinstance(one.say(acquire(KEY, "b")), Granted)
    assert isinstance(other.say(acquire(KEY, "c")), Refused)
    one.close()
    other.close()


GRANT = Notification(b"lock:x", "f" * 24, "me", "granted", 7, (0, 2), 12.5, 5.0, "", "c" * 64)


def test_what_is_written_is_read() -> None:
    largest = replace(GRANT, key=b"\xff" * 523, lease="\N{SNOWMAN}" * 24, detail='\0\n"' * 66)
    sent = [largest, GRANT] * 10  # more than one datagram
    found: list[Notification] = []
    for datagram in notify.datagrams_of(sent):
        assert len(datagram) <= notify.FULL or datagram.count(b"\n") == 1
        found += notify.notifications_in(datagram, "me")
    assert found == sent


def test_a_datagram_that_is_cut_or_changed_is_dropped() -> None:
    whole = next(notify.datagrams_of([GRANT]))
    changed = [
        *(whole[:size] for size in range(len(whole))),
        b"DI1" + whole[3:],
        whole.replace(b'"granted"', b'"stolen"'),
        whole.replace(b"12.5", b'"soon"'),
        whole.replace(b"ffff", b"\xff\xff\xff\xff"),
        *(whole + b"\n" + more for more in (b"[" * 5000, b"{}", b"7")),
    ]
    for datagram in changed:
        assert notify.notifications_in(datagram, "me") == []


def test_a_socket_that_is_a_file_is_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems without abstract names."""
    with TemporaryDirectory(dir="/tmp", prefix="dibs") as short:  # a socket's path has little room
        monkeypatch.setattr("sys.platform", "darwin")
        monkeypatch.setattr("tempfile.tempdir", short)
        holder, waiter = Opened(path), Opened(path)
        monkeypatch.undo()
        inbox = Path(waiter.inbox)
        assert inbox.is_socket()
        holder.say(acquire(KEY, "a"))
        waiter.say(acquire(KEY, "b", queue=True, inbox=waiter.inbox))
        holder.say(Release(KEY, "a"))
        assert [push.event for push in waiter.notifications(5)] == ["granted"]
        holder.close()
        waiter.close()
        assert not inbox.exists()


async def test_without_sockets_it_polls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no sockets in this sandbox")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    url = f"sqlite:///{path}"
    async with connect(url) as holder, connect(url) as waiter:
        lease = await holder.lock("x").acquire()
        waiting = asyncio.ensure_future(waiter.lock("x").acquire(wait=20))
        while not (await holder.status("x")).waiting:
            await asyncio.sleep(0.01)
        await lease.release()
        await (await waiting).release()
        found = {finding.about: finding.told for finding in await holder.examine()}
        assert found["notifications"] == "datagram sockets are not available here: waiters poll"
