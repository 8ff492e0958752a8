"""What a contestant in the cycles is."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
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


class Program(NamedTuple):
    """Cycles in a program of another language; it prints its `cycles` and the `seconds` they took as JSON."""

    command: Callable[[Place, int, float], Sequence[str | Path]]
    """For a place, so many tasks and seconds."""


type Contestant = Blocking | Async | Program


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
