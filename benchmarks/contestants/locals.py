"""Locks of the standard library, which know one process only: what the language itself costs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant
from benchmarks.place import Place


@asynccontextmanager
async def _asyncio(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    def on(key: str) -> AsyncRun:
        lock = asyncio.Lock()

        async def run(n: int) -> None:
            for _ in range(n):
                await lock.acquire()
                lock.release()

        return run

    yield on


CYCLES: dict[str, Contestant] = {"asyncio.Lock": Async(_asyncio)}
