"""grelmicro's locks, on its stores in memory and in SQLite, with its own defaults."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from grelmicro.sync import Lock
from grelmicro.sync.errors import LockAcquireError, LockNotOwnedError, LockReleaseError
from grelmicro.sync.memory import MemorySyncBackend
from grelmicro.sync.sqlite import SQLiteSyncBackend

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant
from benchmarks.place import Place

type Backend = MemorySyncBackend | SQLiteSyncBackend


def _on_backend(backend: Backend) -> Callable[[str], AsyncRun]:
    def on(key: str) -> AsyncRun:
        lock = Lock(key, backend=backend)

        async def run(n: int) -> None:
            for _ in range(n):
                await _stubbornly(lock.acquire)
                await _stubbornly(lock.release)

        return run

    return on


async def _stubbornly(call: Callable[[], Awaitable[None]]) -> None:
    """Tasks that share its SQLite connection now and then get an error, after which it may be retried."""
    while True:
        try:
            return await call()
        except (LockAcquireError, LockReleaseError):
            continue
        except LockNotOwnedError:
            return None  # a release that failed had released it nevertheless


@asynccontextmanager
async def _memory(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    async with MemorySyncBackend() as backend:
        yield _on_backend(backend)


@asynccontextmanager
async def sqlite_backend(place: Place, synchronous: str = "") -> AsyncIterator[SQLiteSyncBackend]:
    async with SQLiteSyncBackend(place.file("grelmicro.db")) as backend:
        if synchronous:
            assert backend._conn is not None
            await backend._conn.execute(f"PRAGMA synchronous = {synchronous}")
        yield backend


@asynccontextmanager
async def _sqlite(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    async with sqlite_backend(place) as backend:
        yield _on_backend(backend)


@asynccontextmanager
async def _sqlite_normal(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Not what it does by itself, but the same durability as the others in the table."""
    async with sqlite_backend(place, "NORMAL") as backend:
        yield _on_backend(backend)


CYCLES: dict[str, Contestant] = {
    "grelmicro memory": Async(_memory),
    "grelmicro sqlite": Async(_sqlite),
    "grelmicro sqlite, synchronous=NORMAL": Async(_sqlite_normal),
}
