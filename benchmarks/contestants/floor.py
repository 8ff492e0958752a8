"""The least that a lock in SQLite can do to hand itself on: one transaction, then a datagram.

A row says who holds it, other rows who waits. There are no leases, tokens or expiry in it, no error
handling, and it dies with a process: it only shows what the store and the socket cost by themselves.
"""

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from benchmarks.contestants.grabbing import Grab, Release
from benchmarks.place import Place

TABLES = (
    "CREATE TABLE IF NOT EXISTS held (one INTEGER PRIMARY KEY, process INTEGER, number INTEGER)",
    "CREATE TABLE IF NOT EXISTS queue (arrival INTEGER PRIMARY KEY, process INTEGER, number INTEGER)",
)


class _Direct:
    """One process's connection, its socket, and its tasks that wait."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._address(place.process))
        self._loop.add_reader(self._socket, self._read)
        self._db = sqlite3.connect(place.file("floor.db"), isolation_level=None, timeout=30)
        self._execute = self._db.cursor().execute
        self._execute("PRAGMA page_size = 1024")
        self._execute("PRAGMA journal_mode = WAL")
        self._execute("PRAGMA synchronous = NORMAL")
        for table in TABLES:
            self._execute(table)

    def _address(self, process: int) -> str:
        return self._place.file(f"floor-{process}")

    def _read(self) -> None:
        self._waiting.pop(self._socket.recv(16)[0]).set_result(None)

    async def take(self, number: int) -> None:
        execute, me = self._execute, (self._place.process, number)
        waiter = self._waiting[number] = self._loop.create_future()
        execute("BEGIN IMMEDIATE")
        if execute("SELECT 1 FROM held").fetchone() is None:
            execute("INSERT INTO held VALUES (1, ?, ?)", me)
            waiter.set_result(None)
            del self._waiting[number]
        else:
            execute("INSERT INTO queue (process, number) VALUES (?, ?)", me)
        execute("COMMIT")
        await waiter

    async def give(self) -> None:
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        head = execute("SELECT * FROM queue ORDER BY arrival LIMIT 1").fetchone()
        if head is None:
            execute("DELETE FROM held")
        else:
            execute("DELETE FROM queue WHERE arrival = ?", head[:1])
            execute("UPDATE held SET process = ?, number = ?", head[1:])
        execute("COMMIT")
        if head is not None:
            self._socket.sendto(bytes([head[2]]), self._address(head[1]))

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._db.close()


@asynccontextmanager
async def direct(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    """Waiters, as `waiting` wants them."""
    lock = _Direct(place)

    def grab_for(number: int) -> Grab:
        async def grab() -> Release:
            await lock.take(number)
            return lock.give

        return grab

    yield grab_for
    lock.close()
