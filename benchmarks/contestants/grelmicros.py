"""grelmicro's locks, on its stores in memory and in SQLite, with its own defaults."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from grelmicro.coordination import Lock
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.coordination.sqlite import SQLiteLockAdapter
from grelmicro.providers.sqlite import SQLiteProvider

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant, cycles
from benchmarks.place import Place


@asynccontextmanager
async def _memory(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    async with MemoryLockAdapter() as backend:
        yield lambda key: cycles(Lock(key, backend=backend))


@asynccontextmanager
async def sqlite_backend(place: Place, synchronous: str = "") -> AsyncIterator[SQLiteLockAdapter]:
    async with (
        SQLiteProvider(place.file("grelmicro.db")) as provider,
        SQLiteLockAdapter(provider=provider) as backend,
    ):
        if synchronous:
            await provider.client.execute(f"PRAGMA synchronous = {synchronous}")
        yield backend


@asynccontextmanager
async def _sqlite(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    async with sqlite_backend(place) as backend:
        yield lambda key: cycles(Lock(key, backend=backend))


@asynccontextmanager
async def _sqlite_normal(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Not what it does by itself, but the same durability as the others in the table."""
    async with sqlite_backend(place, "NORMAL") as backend:
        yield lambda key: cycles(Lock(key, backend=backend))


CYCLES: dict[str, Contestant] = {
    "grelmicro memory": Async(_memory),
    "grelmicro sqlite": Async(_sqlite),
    "grelmicro sqlite, synchronous=NORMAL": Async(_sqlite_normal),
}
