"""Work that a server does beside requests, for as long as it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager

from dibs.errors import DibsError

log = logging.getLogger("dibs.server")


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
    """Do work every so many seconds, the first time after `first`. A failure is logged after `trouble`."""
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
