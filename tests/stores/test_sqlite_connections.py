"""Connections to a SQLite file: in place, in one statement, by datagrams, and their end."""

import asyncio
import gc
import socket
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import connect
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Notification,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Status,
)
from dibs.stores.sqlite import SqliteStore, notify
from dibs.stores.sqlite.aio import IN_PLACE
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from dibs.testing import ManualClock
from dibs.testing.connections import Mode
from tests.connections import connection_to
from tests.stores.differential import Time
from tests.stores.sqlite_help import acquire, blocking, run, url_of

KEY = b"lock:x"


async def looped(path: Path, **options: Any) -> Any:
    connection = connection_to(SqliteStore(url_of(path), **options), "async")
    await connection.open()
    return connection


def in_place(connection: Any, command: Command) -> Any:
    """The reply that comes before `submit` returns; None: it comes later, and is given up."""
    replies = connection.now([command])
    return None if replies is None else replies[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


# ---- commands -------------------------------------------------------------------------------------


async def test_an_idle_file_is_used_in_place(path: Path) -> None:
    backend = await looped(path)
    assert isinstance(in_place(backend, acquire(KEY, "a")), Granted)
    refused = in_place(backend, acquire(KEY, "b"))
    assert isinstance(refused, Refused)
    assert refused.holders[0].lease == fingerprint("a")
    assert in_place(backend, Release(KEY, "a")) == Released()
    await backend.close()


async def test_a_busy_file_is_not_waited_for_in_place(path: Path) -> None:
    backend = await looped(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    before = time.perf_counter()
    assert in_place(backend, acquire(KEY, "given up")) is None
    assert time.perf_counter() - before < 0.05
    waiting = asyncio.ensure_future(backend.apply([acquire(KEY, "a")]))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    other.execute("COMMIT")
    [granted] = await asyncio.wait_for(waiting, 5)
    assert isinstance(granted, Granted)
    other.close()
    await backend.close()


async def test_a_file_locked_for_too_long_is_said_to_be(path: Path) -> None:
    store = SqliteStore(f"{url_of(path)}?timeout=0.1")
    backend, thread = connection_to(store, "async"), connection_to(store, "blocking")
    await backend.open()
    await thread.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailable, match=rf"another process kept {path} locked for 0.1 s"):
        await backend.apply([acquire(KEY, "a")])
    with pytest.raises(BackendUnavailable, match="locked"):
        run(thread.apply([acquire(KEY, "a")]))
    other.execute("ROLLBACK")
    other.close()
    assert isinstance((await backend.apply([acquire(KEY, "a")]))[0], Granted)
    await backend.close()
    run(thread.close())


async def test_a_batch_is_committed_once(path: Path) -> None:
    backend = await looped(path)
    told: list[str] = []
    backend._connection._db.set_trace_callback(told.append)
    replies = await backend.apply([acquire(b"lock:%d" % n, f"id{n}") for n in range(64)])
    assert all(isinstance(reply, Granted) for reply in replies)
    assert told.count("COMMIT") == 1
    await backend.close()


async def test_a_cancelled_caller_interrupts_nothing(path: Path) -> None:
    backend = await looped(path)
    for number in range(50):
        key = b"lock:%d" % number
        too_many = [acquire(key, "id"), *[Inspect(key)] * IN_PLACE]
        task = asyncio.ensure_future(backend.apply(too_many))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    [status] = await backend.apply([Inspect(b"lock:0")])
    assert isinstance(status, Status)
    assert isinstance((await backend.apply([acquire(KEY, "z")]))[0], Granted)
    await backend.close()


async def test_what_nobody_waits_for_any_more_is_not_tried_for_ever(path: Path) -> None:
    backend = await looped(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(backend.apply([acquire(KEY, "a")]), 0.05)
    await asyncio.sleep(0.1)
    other.execute("ROLLBACK")
    other.close()
    [status] = await backend.apply([Inspect(KEY)])
    assert status.holders == ()
    await backend.close()


# ---- notifications --------------------------------------------------------------------------------------


async def test_a_dead_inbox_is_no_error(path: Path) -> None:
    backend = await looped(path)
    for number, inbox in enumerate(["dibs-gone", "/nowhere/at/all", "x" * 200, "/nul\0nul"]):
        key = b"lock:%d" % number
        await backend.apply([acquire(key, "a")])
        await backend.apply([acquire(key, "b", queue=True, inbox=inbox)])
        assert await backend.apply([Release(key, "a")]) == [Released()]
    await backend.close()


# ---- scan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "blocking"])
async def test_whoever_a_scan_grants_to_is_told(path: Path, mode: Mode) -> None:
    clock = Time()
    store = SqliteStore(url_of(path), clock=clock)
    scanner, waiter = connection_to(store, mode), blocking(path, clock=clock)
    await scanner.open()
    keys = [b"lock:%03d" % n for n in range(100)]
    for key in keys:
        await scanner.apply([acquire(key, "a", ttl=1.0)])
    for key, inbox in zip(keys, [waiter.inbox, scanner.inbox] * 50, strict=True):
        run(waiter.apply([acquire(key, "b", queue=True, waiter_ttl=30.0, inbox=inbox)]))
    clock.advance(2.0)
    assert len((await scanner.scan(b"", None, 1000)).items) == 100
    for each, count in ((scanner, 50), (waiter, 50)):
        pushes: list[Any] = []
        while len(pushes) < count:
            more = await each.notifications(1)
            assert more, f"{len(pushes)} of {count} arrived"
            pushes += more
        assert {push.event for push in pushes} == {"granted"}
        await each.close()


# ---- the end --------------------------------------------------------------------------------------


async def test_close_and_open_again(path: Path) -> None:
    backend = await looped(path)
    for _ in range(3):
        in_place(backend, acquire(KEY, "a"))
        await backend.close()
        assert not Path(f"{path}-wal").exists(), "the last one out puts the log away"
        await backend.open()
    assert isinstance(in_place(backend, Renew(KEY, "a", 30.0)), Renewed)
    await backend.close()


def no_workers() -> bool:
    """Do all threads end, once nobody has their backends any more?"""
    for _ in range(200):
        gc.collect()
        workers = [thread for thread in threading.enumerate() if thread.name == "dibs-sqlite"]
        if not workers:
            return True
        workers[0].join(0.05)
    return False


def test_a_loop_closed_in_mid_flight_is_no_trouble(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = asyncio.new_event_loop()
        backend = loop.run_until_complete(looped(path))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        flight = loop.create_task(backend.apply([acquire(KEY, "a")]))
        flight._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        other.execute("COMMIT")
        other.close()
        del flight, backend, loop
        assert no_workers(), "a backend that was dropped ends its thread"
    again = blocking(path)
    [status] = run(again.apply([Inspect(KEY)]))
    assert [holder.owner for holder in status.holders] in (["owner of a"], [])
    run(again.close())


def interrupted_after(steps: int, action: Any) -> bool:
    """Run something, with Ctrl-C after so many bytecodes of the store; tell whether it came to that."""
    seen = 0

    def tracer(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if "dibs/stores/sqlite" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == steps:
                raise KeyboardInterrupt
        return tracer

    sys._getframe().f_trace_opcodes = True  # 3.12 traces opcodes only if some frame asked before
    sys.settrace(tracer)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.long)])
def test_interrupted_at_any_bytecode_it_can_be_closed(path: Path, stride: int) -> None:
    """Nothing is left half done, and nobody is locked out."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    keep = blocking(path)
    for steps in range(1, 100_000, stride):
        backend = blocking(path)
        command = acquire(b"lock:%d" % steps, "a")
        interrupted = interrupted_after(steps, lambda b=backend, c=command: run(b.apply([c])))
        run(backend.close())
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        if not interrupted:
            break
    assert 100 < steps < 90_000
    other.close()
    run(keep.close())


def alone(lease_id: str, *, queue: bool = False) -> Acquire:
    return Acquire(KEY, lease_id, "o", 30.0, queue=queue)


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every connection that a test makes is closed behind it."""
    made: list[Connection] = []
    make = Connection.__init__

    def noted(self: Connection, site: StoreFile) -> None:
        make(self, site)
        made.append(self)

    monkeypatch.setattr(Connection, "__init__", noted)
    yield
    for connection in made:
        connection.close()


@pytest.fixture
def site(tmp_path: Path) -> StoreFile:
    return StoreFile(f"sqlite:///{tmp_path}/leases.db", ManualClock(), None)


def statements(connection: Connection, command: Acquire | Release | Renew) -> list[str]:
    """What SQLite is asked for the sake of one command, by its first words."""
    told: list[str] = []
    assert connection._db is not None
    connection._db.set_trace_callback(lambda text: told.append(text.split()[0]))
    connection.apply([command])
    connection._db.set_trace_callback(None)
    return told


def test_a_key_that_was_used_before_takes_one_statement(site: StoreFile) -> None:
    connection = Connection(site)
    connection.apply([alone("a")])
    assert statements(connection, Renew(KEY, "a", 30.0)) == ["UPDATE"]
    assert statements(connection, Release(KEY, "a")) == ["UPDATE"]
    assert statements(connection, alone("b")) == ["UPDATE"]


def test_a_refusal_is_never_given_from_memory(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([alone("a")])
    other.apply([Release(KEY, "a")])
    assert isinstance(connection.apply([alone("b")])[0][0], Granted)


def test_a_queue_is_joined_in_a_transaction(site: StoreFile) -> None:
    """Nothing of it may be in the file if the rest is not."""
    connection, other = Connection(site), Connection(site)
    connection.apply([alone("a")])
    other.apply([Release(KEY, "a")])
    [granted] = connection.apply([alone("b", queue=True)])[0]  # our copy has a place for it
    assert isinstance(granted, Granted)
    assert connection.read("SELECT id FROM lease_entries") == []


def test_a_lone_waiter_and_a_lone_burial_leave_nothing_half_done(site: StoreFile) -> None:
    """Nobody else writes in between, so the copy in memory would seem good."""
    connection = Connection(site)
    connection.apply([alone("a")])
    connection.apply([alone("b", queue=True)])
    connection.apply([alone("c", queue=True)])
    assert connection.read("SELECT waiting FROM lease_keys") == [(2,)]
    connection.apply([Release(KEY, "b", tombstone=60.0)])
    connection.apply([Release(KEY, "c")])
    connection.apply([Release(KEY, "a", tombstone=60.0)])
    assert connection.read("SELECT waiting, tombs, used FROM lease_keys") == [(0, 2, 0)]
    assert connection.read("SELECT count(*) FROM lease_entries") == [(2,)]


def test_a_transaction_that_was_left_open_is_undone_first(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([alone("a")])
    connection.apply([Release(KEY, "a")])
    assert connection._db is not None
    connection._db.execute("BEGIN IMMEDIATE")
    connection._db.execute("UPDATE lease_keys SET last = 0")
    [mine] = connection.apply([alone("b")])[0]
    assert isinstance(mine, Granted)
    assert isinstance(other.apply([alone("c")])[0][0], Refused)


GRANT = Notification(b"lock:x", "f" * 24, "me", "granted", 7, (0, 2), 12.5, 5.0, "", "c" * 64)

notifications = st.builds(
    Notification,
    key=st.binary(min_size=1, max_size=523),
    lease=st.text(max_size=24),
    inbox=st.just("me"),
    event=st.sampled_from(["granted", "head", "revoked", "refused"]),
    token=st.integers(0, 2**53 - 1),
    slots=st.lists(st.integers(0, 1000), max_size=9).map(tuple),
    granted_at=st.floats(0, 1e9),
    claim_timeout=st.floats(0, 5),
    detail=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    proof=st.text("0123456789abcdef", max_size=64),
)


@given(st.lists(notifications, max_size=40))
def test_what_is_written_is_read(sent: list[Notification]) -> None:
    found: list[Notification] = []
    for datagram in notify.datagrams_of(sent):
        assert len(datagram) <= notify.MAX_SIZE
        found += notify.notifications_in(datagram, "me")
    assert found == sent


@given(st.binary(max_size=300))
def test_garbage_is_dropped(garbage: bytes) -> None:
    assert not notify.notifications_in(garbage, "me")
    assert not notify.notifications_in(notify.VERSION + garbage[:40], "me")


WHOLE = next(notify.datagrams_of([GRANT]))


@pytest.mark.parametrize(
    "datagram",
    [
        *(WHOLE[:size] for size in range(len(notify.VERSION), len(WHOLE))),
        b"DI1" + WHOLE[3:],
        WHOLE.replace(b'"granted"', b'"stolen"'),
        WHOLE.replace(b"12.5", b'"soon"'),
        WHOLE.replace(b"ffff", b"\xff\xff\xff\xff"),
        WHOLE + b"\n" + b"[" * 5000,
        WHOLE + b"\n{}",
        WHOLE + b"\n7",
    ],
)
def test_a_datagram_that_is_cut_or_changed_is_dropped(datagram: bytes) -> None:
    assert notify.notifications_in(datagram, "me") == []


@pytest.fixture
def short_path() -> Iterator[str]:
    """A folder of few datagrams: a socket's path has room for a hundred or so."""
    with TemporaryDirectory(dir="/tmp", prefix="dibs") as folder:
        yield folder


def test_a_socket_that_is_a_file_is_removed(
    tmp_path: Path, short_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems without abstract names."""
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("tempfile.tempdir", short_path)
    holder, waiter = blocking(tmp_path / "leases.db"), blocking(tmp_path / "leases.db")
    monkeypatch.undo()
    inbox = Path(waiter.inbox)
    assert inbox.is_socket()
    run(holder.apply([acquire(b"lock:x", "a")]))
    run(waiter.apply([acquire(b"lock:x", "b", queue=True, inbox=waiter.inbox)]))
    run(holder.apply([Release(b"lock:x", "a")]))
    [push] = run(waiter.notifications(5))
    assert push.event == "granted"
    run(holder.close())
    run(waiter.close())
    assert not inbox.exists()


async def test_without_sockets_it_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no sockets in this sandbox")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    url = f"sqlite:///{tmp_path}/leases.db"
    async with connect(url) as holder, connect(url) as waiter:
        await waiter.status("connected")
        assert waiter.session.loop_runtime().inbox == ""
        lease = await holder.lock("x").acquire()
        waiting = asyncio.ensure_future(waiter.lock("x").acquire(wait=20))
        while not (await holder.status("x")).waiting:
            await asyncio.sleep(0.01)
        await lease.release()
        await (await waiting).release()
        found = {finding.about: finding.told for finding in await holder.examine()}
        assert found["pushes"] == "datagram sockets are not available here: waiters poll"
