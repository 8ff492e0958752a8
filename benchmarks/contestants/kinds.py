"""What a contestant in the cycles is."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple

from benchmarks.place import Place

type Run = Callable[[int], None]
type AsyncRun = Callable[[int], Awaitable[None]]


class Blocking(NamedTuple):
    """Cycles in threads."""

    open: Callable[[Place], AbstractContextManager[Callable[[str], Run]]]


class Async(NamedTuple):
    """Cycles in tasks of one event loop."""

    open: Callable[[Place], AbstractAsyncContextManager[Callable[[str], AsyncRun]]]
    uvloop: bool = False


type Contestant = Blocking | Async


def cycles(lock: Any) -> AsyncRun:
    """Of a lock with the methods that asyncio's own has."""

    async def run(n: int) -> None:
        for _ in range(n):
            await lock.acquire()
            await lock.release()

    return run


def blocking_cycles(lock: Any) -> Run:
    """Of a lock with the methods that threading's own has."""

    def run(n: int) -> None:
        for _ in range(n):
            lock.acquire()
            lock.release()

    return run
