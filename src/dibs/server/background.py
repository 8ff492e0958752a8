"""Work that a server does beside requests, for as long as it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import contextmanager

from dibs.errors import DibsError

log: logging.Logger = logging.getLogger("dibs.server")


type Callback = Callable[[], None]


class Watchers[K: Hashable]:
    """Callbacks that wait for the end of something, such as a session. One event loop uses it."""

    def __init__(self) -> None:
        self._callbacks: dict[K, list[Callback]] = {}

    def __iter__(self) -> Iterator[K]:
        """What is watched."""
        return iter(list(self._callbacks))

    def add(self, what: K, callback: Callback) -> Callback:
        """Have `call` call this once. Returns a function that takes that back."""
        self._callbacks.setdefault(what, []).append(callback)

        def forget() -> None:
            left = self._callbacks.get(what, [])
            if callback in left:
                left.remove(callback)
            if not left:
                self._callbacks.pop(what, None)

        return forget

    def call(self, what: K) -> None:
        """Call the callbacks of what has ended, and forget them."""
        for callback in self._callbacks.pop(what, ()):
            callback()


class LogOnce:
    """Logs each problem once, until it is over or another one takes its place."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}

    def warn(self, about: str, problem: str) -> None:
        """Log a problem, unless it is the one that was logged last about this."""
        if self._logged.get(about) != problem:
            self._logged[about] = problem
            log.warning("%s: %s", about, problem)

    def clear(self, about: str) -> None:
        """The problem is over: log it again if it comes back."""
        self._logged.pop(about, None)


async def repeat(
    work: Callable[[], Awaitable[None]], every: float, trouble: str, first: float | None = None
) -> None:
    """Do work every `every` seconds, at first after `first`. `trouble` begins the log line of a failure."""
    problems = LogOnce()
    pause = every if first is None else first
    while True:
        await asyncio.sleep(pause)
        pause = every
        try:
            await work()
            problems.clear(trouble)
        except (DibsError, TimeoutError) as error:
            problems.warn(trouble, str(error) or "it takes too long")
        except Exception:
            log.exception(trouble)


@contextmanager
def background(work: Coroutine[None, None, None]) -> Generator[None]:
    """Run a task until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
