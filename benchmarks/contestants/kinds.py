"""What a contestant in the cycles is."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import NamedTuple

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
