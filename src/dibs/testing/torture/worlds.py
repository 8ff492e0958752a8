"""What tells tasks from threads to those who take turns: their text is the same."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import ModuleType, TracebackType
from typing import Any, Literal, Protocol

import dibs
import dibs.sync

type WorldName = Literal["threads", "asyncio"]
WORLDS: tuple[WorldName, ...] = ("threads", "asyncio")


class Stopped(KeyboardInterrupt):
    """Told to stop while waiting in a queue."""


class World(Protocol):
    """How a hand waits for what the public API returns."""

    @property
    def library(self) -> ModuleType:
        """The public names of that world."""
        ...

    @property
    def interrupted(self) -> type[BaseException]:
        """What a hand gets to see that is called away from a queue."""
        ...

    async def get(self, value: Any) -> Any:
        """The result of a call."""

    async def sleep(self, seconds: float) -> None: ...

    def block(self, manager: Any) -> AbstractAsyncContextManager[Any]:
        """What to enter with `async with`."""
        ...


class Tasks:
    """Of an event loop."""

    library = dibs
    interrupted = asyncio.CancelledError

    async def get(self, value: Any) -> Any:
        return await value

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def block(self, manager: Any) -> AbstractAsyncContextManager[Any]:
        return manager  # type: ignore[no-any-return]


class Threads:
    """Whose calls have returned already."""

    library = dibs.sync
    interrupted = Stopped

    async def get(self, value: Any) -> Any:
        return value

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop here

    def block(self, manager: Any) -> AbstractAsyncContextManager[Any]:
        return _Entered(manager)


class _Entered:
    """A `with` block, in a text that says `async with`."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._manager.__exit__(kind, error, trace)  # type: ignore[no-any-return]
