"""Who hands one key on: each gives, for every waiter, an acquire that answers with the release."""

import asyncio
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, NamedTuple

from benchmarks.contestants import (
    etcd_waiting,
    kubernetes_waiting,
    postgres_waiting,
    redis_waiting,
)
from benchmarks.contestants.floor import direct
from benchmarks.contestants.grabbing import BlockingGrab, Grab, Release, grabbing
from benchmarks.place import Place

POLL = 0.1
ABSENT = 0.05
"""Seconds after which a baton goes on if nobody has taken it: at the end of a round some have left."""
STORES = ("sqlite", "redis", "postgres", "etcd", "kubernetes")


class AsyncWaiting(NamedTuple):
    """Waiters are tasks; the opened thing makes a grab for the waiter of a number."""

    open: Callable[[Place], AbstractAsyncContextManager[Callable[[int], Grab]]]
    processes: int = 4
    waiters: int = 2


class BlockingWaiting(NamedTuple):
    """Waiters are threads; locks on files exclude processes only, so those have one each."""

    open: Callable[[Place], AbstractContextManager[Callable[[int], BlockingGrab]]]
    processes: int = 4
    waiters: int = 2


class Single(NamedTuple):
    """One call to a server, which is made again and again: nobody waits, and nothing is handed on."""

    open: Callable[[Place], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]
    processes: int = 1
    waiters: int = 1


# ---- Dibs ------------------------------------------------------------------------------------


def _url(store: str, place: Place) -> str:
    return place.sqlite_url if store == "sqlite" else place.server_url


def _dibs(store: str) -> AsyncWaiting:
    @asynccontextmanager
    async def open_(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
        import dibs

        async with dibs.connect(_url(store, place)) as client:
            lock = client.lock("baton")

            def grab_for(number: int) -> Grab:
                async def grab() -> Release:
                    return (await lock.acquire()).release

                return grab

            yield grab_for

    return AsyncWaiting(open_)


def _dibs_sync(store: str) -> BlockingWaiting:
    @contextmanager
    def open_(place: Place) -> Iterator[Callable[[int], BlockingGrab]]:
        import dibs.sync

        with dibs.sync.connect(_url(store, place)) as client:
            lock = client.lock("baton")
            yield lambda number: lambda: lock.acquire().release

    return BlockingWaiting(open_)


# ---- the least that a hand-off between two event loops can cost -------------------------------------


class _Ring:
    """One process's end of a ring of datagram sockets, around which a baton is passed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._early: set[int] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._address(place.process))
        self._loop.add_reader(self._socket, self._read)
        if place.process == 0:
            self._early.add(0)

    def _address(self, process: int) -> str:
        return self._place.file(f"ring-{process}")

    def _read(self) -> None:
        number = self._socket.recv(16)[0]
        waiter = self._waiting.pop(number, None)
        if waiter is None:
            self._early.add(number)
            self._loop.call_later(ABSENT, self._pass_on, number)
        else:
            waiter.set_result(None)

    def _pass_on(self, number: int) -> None:
        if number in self._early:
            self._early.remove(number)
            with suppress(OSError):  # all has been closed meanwhile
                self._send_after(number)

    async def take(self, number: int) -> None:
        if number in self._early:
            self._early.remove(number)
            return
        waiter = self._waiting[number] = self._loop.create_future()
        await waiter

    async def give(self, number: int) -> None:
        """To the same waiter of the next process; the last process's, to the next waiter."""
        self._send_after(number)

    def _send_after(self, number: int) -> None:
        process = (self._place.process + 1) % 4
        after = (number + 1) % 2 if process == 0 else number
        self._socket.sendto(bytes([after]), self._address(process))

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


@asynccontextmanager
async def _datagrams(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    ring = _Ring(place)

    def grab_for(number: int) -> Grab:
        async def grab() -> Release:
            await ring.take(number)
            return lambda: ring.give(number)

        return grab

    yield grab_for
    ring.close()


# ---- polls ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _poll(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    """A row in SQLite that every waiter tries to write ten times a second."""
    connection = sqlite3.connect(place.file("poll.db"), isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS held (key TEXT PRIMARY KEY)")

    async def release() -> None:
        connection.execute("DELETE FROM held")

    async def grab() -> Release:
        while not connection.execute("INSERT OR IGNORE INTO held VALUES ('baton')").rowcount:
            await asyncio.sleep(POLL)
        return release

    yield lambda number: grab
    connection.close()


@asynccontextmanager
async def _grelmicro(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    from grelmicro.coordination import Lock

    from benchmarks.contestants.grelmicros import sqlite_backend

    async with sqlite_backend(place) as backend:
        yield lambda number: grabbing(Lock("baton", backend=backend))


def _on_file(name: str) -> BlockingWaiting:
    @contextmanager
    def open_(place: Place) -> Iterator[Callable[[int], BlockingGrab]]:
        from benchmarks.contestants import files

        make: Callable[[str], Any] = getattr(files, f"{name}_on")

        def grab_for(number: int) -> BlockingGrab:
            lock = make(place.file("baton"))

            def grab() -> Callable[[], object]:
                lock.acquire()
                return lock.release  # type: ignore[no-any-return]

            return grab

        yield grab_for

    return BlockingWaiting(open_, processes=8, waiters=1)


WAITING: dict[str, AsyncWaiting | BlockingWaiting | Single] = {
    **{f"dibs {store}": _dibs(store) for store in STORES},
    **{f"dibs {store}, sync": _dibs_sync(store) for store in STORES},
    "raw datagram": AsyncWaiting(_datagrams),
    "bare SQLite, then a datagram": AsyncWaiting(direct),
    "0.1 s poll of SQLite": AsyncWaiting(_poll),
    "grelmicro sqlite": AsyncWaiting(_grelmicro),
    "filelock": _on_file("filelock"),
    "portalocker": _on_file("portalocker"),
    "fasteners": _on_file("fasteners"),
    "bare grant and publish": AsyncWaiting(redis_waiting.direct),
    "redis.asyncio.Lock": AsyncWaiting(redis_waiting.redis_py),
    "grelmicro redis": AsyncWaiting(redis_waiting.grelmicro),
    "python-redis-lock, sync": BlockingWaiting(redis_waiting.python_redis_lock),
    "blocking advisory lock": BlockingWaiting(postgres_waiting.advisory),
    "bare grant and notify": AsyncWaiting(postgres_waiting.direct),
    "grelmicro postgres": AsyncWaiting(postgres_waiting.grelmicro),
    "one write to etcd": Single(etcd_waiting.put),
    "aetcd": AsyncWaiting(etcd_waiting.aetcd),
    "etcd-client-py": AsyncWaiting(etcd_waiting.etcd_client_py),
    "one PUT to Kubernetes": Single(kubernetes_waiting.put),
    "grelmicro kubernetes": AsyncWaiting(kubernetes_waiting.grelmicro),
}


def boot() -> float:
    """One clock for all processes of the machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
