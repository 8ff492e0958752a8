"""Locks on files: one file for each key, in the folder where SQLite's would be."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import fasteners
import filelock
import portalocker

from benchmarks.contestants.kinds import Async, AsyncRun, Blocking, Contestant, Run
from benchmarks.place import Place


def filelock_on(path: str) -> Any:
    return filelock.FileLock(path)


def portalocker_on(path: str) -> Any:
    return portalocker.Lock(path, timeout=60)


def fasteners_on(path: str) -> Any:
    return fasteners.InterProcessLock(path)


def _blocking(make: Callable[[str], Any]) -> Blocking:
    @contextmanager
    def open_(place: Place) -> Iterator[Callable[[str], Run]]:
        def on(key: str) -> Run:
            lock = make(place.file(key))

            def run(n: int) -> None:
                for _ in range(n):
                    lock.acquire()
                    lock.release()

            return run

        yield on

    return Blocking(open_)


@asynccontextmanager
async def _async_filelock(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    def on(key: str) -> AsyncRun:
        lock = filelock.AsyncFileLock(place.file(key))

        async def run(n: int) -> None:
            for _ in range(n):
                await lock.acquire()
                await lock.release()

        return run

    yield on


CYCLES: dict[str, Contestant] = {
    "filelock": _blocking(filelock_on),
    "filelock, async": Async(_async_filelock),
    "portalocker": _blocking(portalocker_on),
    "fasteners": _blocking(fasteners_on),
}
