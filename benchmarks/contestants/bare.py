"""What there is below Dibs, without Dibs: the ledger alone, and SQLite alone."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from queue import SimpleQueue

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant
from benchmarks.place import Place
from dibs.clock import SystemClock
from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.model import Acquire, Release


@asynccontextmanager
async def _ledger_twice(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Acquire and Release on the book of one key, by the real clock: no store, no client."""
    clock = SystemClock()

    def on(key: str) -> AsyncRun:
        book, name, apply = MemoryBook(), key.encode(), ledger.apply

        async def run(n: int) -> None:
            for _ in range(n):
                take = Acquire(name, "an-id-of-24-characters..", "host/1", 30.0, queue=True)
                apply(book, take, clock.now(), clock.stamp())
                give = Release(name, "an-id-of-24-characters..")
                apply(book, give, clock.now(), clock.stamp())

        return run

    yield on


def _connect(place: Place, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place.file("bare.db"), isolation_level=None, timeout=30, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS held (key TEXT PRIMARY KEY, id TEXT, expires REAL)"
        " WITHOUT ROWID"
    )
    return connection


def _take(connection: sqlite3.Connection, key: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO held VALUES (?, 'an-id-of-24-characters..', 1e9)", (key,))
    connection.execute("COMMIT")


def _give(connection: sqlite3.Connection, key: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM held WHERE key = ?", (key,))
    connection.execute("COMMIT")


@asynccontextmanager
async def _pair_in_place(
    place: Place, synchronous: str = "NORMAL"
) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Two transactions on the loop's own thread: it waits for the file where it must."""
    connection = _connect(place, synchronous)

    def on(key: str) -> AsyncRun:
        async def run(n: int) -> None:
            for _ in range(n):
                _take(connection, key)
                _give(connection, key)

        return run

    yield on
    connection.close()


def _pair_in_place_full(place: Place) -> object:
    return _pair_in_place(place, "FULL")


class _OwnThread:
    """A thread that has the connection; each statement's caller awaits a future."""

    def __init__(self, place: Place) -> None:
        self._jobs: SimpleQueue[tuple[Callable[..., None], str, asyncio.Future[None]] | None]
        self._jobs = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(place,))
        self._thread.start()

    async def call(self, what: Callable[..., None], key: str) -> None:
        done = self._loop.create_future()
        self._jobs.put((what, key, done))
        await done

    def _run(self, place: Place) -> None:
        connection = _connect(place, "NORMAL")
        while (job := self._jobs.get()) is not None:
            what, key, done = job
            what(connection, key)
            self._loop.call_soon_threadsafe(done.set_result, None)
        connection.close()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


@asynccontextmanager
async def _pair_in_thread(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Two transactions on a thread of their own, one after the other."""
    thread = _OwnThread(place)

    def on(key: str) -> AsyncRun:
        async def run(n: int) -> None:
            for _ in range(n):
                await thread.call(_take, key)
                await thread.call(_give, key)

        return run

    yield on
    thread.close()


CYCLES: dict[str, Contestant] = {
    "bare ledger, twice": Async(_ledger_twice),
    "bare SQLite pair": Async(_pair_in_place),
    "bare SQLite pair, synchronous=FULL": Async(_pair_in_place_full),  # type: ignore[arg-type]
    "bare SQLite pair, own thread": Async(_pair_in_thread),
}
