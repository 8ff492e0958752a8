"""The connections of an event loop and of a thread, on one file."""

import asyncio
import gc
import os
import socket
import sqlite3
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import (
    Command,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Status,
)
from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite.aio import IN_PLACE
from dibs.testing.connections import Mode
from tests.connections import connection_to
from tests.stores.sqlite_help import ManualClock, acquire, blocking, run, url_of

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


def test_a_clock_of_ones_own(path: Path) -> None:
    clock = ManualClock()
    backend = blocking(path, clock=clock)
    [granted] = run(backend.apply([acquire(KEY, "a", ttl=10.0)]))
    assert granted.token == clock.wall
    clock.advance(9.99)
    assert isinstance(run(backend.apply([acquire(KEY, "b")]))[0], Refused)
    clock.advance(0.02)
    assert isinstance(run(backend.apply([acquire(KEY, "c")]))[0], Granted)
    run(backend.close())


def test_positions_in_the_queue(path: Path) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a")]))
    replies = run(backend.apply([acquire(KEY, f"w{n}", queue=True) for n in range(5)]))
    assert [reply.position for reply in replies if isinstance(reply, Queued)] == [0, 1, 2, 3, 4]
    run(backend.close())


# ---- notifications --------------------------------------------------------------------------------------


async def test_grants_reach_other_backends(path: Path) -> None:
    holder, waiter = await looped(path), await looped(path)
    [first] = await holder.apply([acquire(KEY, "a", inbox=holder.inbox)])
    [queued] = await waiter.apply([acquire(KEY, "b", inbox=waiter.inbox, queue=True)])
    assert queued.position == 0
    await holder.apply([Release(KEY, "a")])
    [push] = await asyncio.wait_for(waiter.notifications(5), 5)
    assert (push.event, push.key, push.lease) == ("granted", KEY, fingerprint("b"))
    assert push.token > first.token
    assert push.slots == (0,)
    assert 0 < push.claim_timeout <= 5
    assert queued.now <= push.granted_at
    [claimed] = await waiter.apply([Renew(KEY, "b", 30.0)])
    assert claimed.token == push.token
    await holder.close()
    await waiter.close()


def test_grants_reach_threads(path: Path) -> None:
    holder, waiter = blocking(path), blocking(path)
    run(holder.apply([acquire(KEY, "a")]))
    run(waiter.apply([acquire(KEY, "b", inbox=waiter.inbox, queue=True)]))
    timer = threading.Timer(0.05, lambda: run(holder.apply([Release(KEY, "a")])))
    timer.start()
    [push] = run(waiter.notifications(10))
    assert (push.event, push.lease) == ("granted", fingerprint("b"))
    timer.join()
    run(holder.close())
    run(waiter.close())


def test_own_grants_need_no_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a", inbox=backend.inbox)]))
    run(backend.apply([acquire(KEY, "b", inbox=backend.inbox, queue=True)]))
    monkeypatch.setattr(socket.socket, "sendto", lambda *_: pytest.fail("a datagram to oneself"))
    run(backend.apply([Release(KEY, "a")]))
    [push] = run(backend.notifications(0))
    assert (push.event, push.lease) == ("granted", fingerprint("b"))
    run(backend.close())


async def test_a_dead_inbox_is_no_error(path: Path) -> None:
    backend = await looped(path)
    for number, inbox in enumerate(["dibs-gone", "/nowhere/at/all", "x" * 200, "/nul\0nul"]):
        key = b"lock:%d" % number
        await backend.apply([acquire(key, "a")])
        await backend.apply([acquire(key, "b", queue=True, inbox=inbox)])
        assert await backend.apply([Release(key, "a")]) == [Released()]
    await backend.close()


def test_a_wake_and_the_timeout_end_the_wait_of_a_thread(path: Path) -> None:
    backend = blocking(path)
    wake = backend.wake
    assert list(run(backend.notifications(0.01))) == []
    timer = threading.Timer(0.05, wake)
    timer.start()
    assert list(run(backend.notifications(None))) == []
    timer.join()
    for _ in range(10_000):
        wake()  # never blocks, however full the pipe
    assert list(run(backend.notifications(None))) == []
    run(backend.close())
    wake()


async def test_many_grants_at_once_all_arrive(path: Path) -> None:
    """A socket's queue holds few datagrams, so one carries many notifications."""
    holder, waiter = await looped(path), await looped(path)
    names = [b"lock:%d" % n for n in range(100)]
    await holder.apply([acquire(name, f"a{n}") for n, name in enumerate(names)])
    await waiter.apply(
        [acquire(name, f"b{n}", queue=True, inbox=waiter.inbox) for n, name in enumerate(names)]
    )
    await holder.apply([Release(name, f"a{n}") for n, name in enumerate(names)])
    seen: set[bytes] = set()
    while len(seen) < 100:
        pushes = await waiter.notifications(5)
        assert pushes, f"{len(seen)} of 100 arrived"
        seen |= {push.key for push in pushes}
    await holder.close()
    await waiter.close()


# ---- scan -----------------------------------------------------------------------------------------


async def test_scan_shows_what_is_not_idle_page_by_page(path: Path) -> None:
    backend = await looped(path)
    wanted = [*(b"lock:%03d" % n for n in range(150)), b"lock:\xff", b"lock:\xff\xff"]
    others = [b"leader:x", b"semaphore:x", b"lock;", b"lock:idle"]
    await backend.apply([acquire(key, key.hex()) for key in wanted + others])
    await backend.apply([Release(b"lock:idle", b"lock:idle".hex(), tombstone=60.0)])
    found, cursor = [], None
    while True:
        page = await backend.scan(b"lock:", cursor, 7)
        assert len(page.items) <= 7
        found += [status.key for status in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == sorted(wanted)
    assert [s.key for s in (await backend.scan(b"lock:\xff", None, 9)).items] == wanted[-2:]
    assert len((await backend.scan(b"", None, 1000)).items) == len(wanted) + 3
    assert (await backend.scan(b"nothing", None, 10)).items == []
    await backend.close()


def test_scan_in_a_thread(path: Path) -> None:
    backend = blocking(path)
    run(backend.apply([acquire(KEY, "a"), acquire(KEY, "b", queue=True)]))
    [status] = run(backend.scan(b"", None, 10)).items
    assert [h.owner for h in status.holders] == ["owner of a"]
    assert [w.owner for w in status.waiters] == ["owner of b"]
    run(backend.close())


@pytest.mark.parametrize("mode", ["async", "blocking"])
async def test_whoever_a_scan_grants_to_is_told(path: Path, mode: Mode) -> None:
    clock = ManualClock()
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


def test_a_dropped_backend_leaves_nothing_open(path: Path) -> None:
    async def use() -> None:
        backend = await looped(path)
        in_place(backend, acquire(KEY, "a"))

    def open_files() -> int:
        assert no_workers()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(use())
    before = open_files()
    for _ in range(5):
        asyncio.run(use())
    assert open_files() <= before


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
