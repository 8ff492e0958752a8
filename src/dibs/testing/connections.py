"""A connection of either side, for cases that are written once."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol
from weakref import WeakMethod

from dibs.errors import DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.runtime.batcher import apply_over
from dibs.stores.port import AsyncConnection, BlockingConnection, Store

type Mode = Literal["async", "blocking"]

TIMEOUT = 30.0
"""Seconds that a call of a case may take: a batch of 512 keys is slow on S3, and on a busy machine."""


def connection_of(store: Store, mode: Mode) -> "TestedConnection":
    """Make a connection of that side; it is not open yet."""
    if mode == "async":
        return OfLoop(store.async_connection())
    return OfThread(store.blocking_connection())


class TestedConnection(Protocol):
    """A connection of either side. On the blocking side the coroutines never suspend."""

    @property
    def inbox(self) -> str:
        """Address to which the store sends this connection's notifications."""
        ...

    async def open(self, *, listen: bool = True) -> None:
        """Connect, and subscribe to notifications if `listen`."""
        ...

    async def close(self) -> None: ...

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]: ...

    async def notifications(self, timeout: float | None) -> Sequence[Notification]:
        """Wait for notifications; none at the timeout. Raises if some may have been missed."""
        ...

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page: ...

    async def examine(self) -> Sequence[Finding]: ...

    def after_fork(self) -> None: ...


class OfLoop(TestedConnection):
    """A connection of an event loop."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection: AsyncConnection = connection
        self._news: deque[Sequence[Notification] | DibsError] = deque()
        self._come = asyncio.Event()
        self._is_broken = False

    @property
    def inbox(self) -> str:
        return self.connection.inbox

    def after_fork(self) -> None:
        self.connection.after_fork()

    async def open(self, *, listen: bool = True) -> None:
        self._come = asyncio.Event()  # cases may use several loops, one after the other
        await self.connection.open()
        if listen:
            await self._subscribe()

    async def _subscribe(self) -> None:
        weakly = WeakMethod(self._deliver)  # a connection that nobody closes ends with its owner

        def deliver(news: Sequence[Notification] | DibsError) -> None:
            found = weakly()
            if found is not None:
                found(news)

        await self.connection.subscribe(deliver)

    def _deliver(self, news: Sequence[Notification] | DibsError) -> None:
        self._news.append(news)
        self._come.set()

    async def close(self) -> None:
        await self.connection.close()

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return await apply_over(self.connection, commands)

    async def notifications(self, timeout: float | None) -> Sequence[Notification]:
        if self._is_broken:
            await self._subscribe()
            self._is_broken = False
        try:
            async with asyncio.timeout(timeout):
                while not self._news:
                    self._come.clear()
                    await self._come.wait()
        except TimeoutError:
            return ()
        news = self._news.popleft()
        if isinstance(news, DibsError):
            self._is_broken = True
            raise news
        return news

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self.connection.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        return await self.connection.examine()


class OfThread(TestedConnection):
    """A connection of a thread."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection: BlockingConnection = connection

    @property
    def inbox(self) -> str:
        return self.connection.inbox

    def after_fork(self) -> None:
        self.connection.after_fork()

    async def open(self, *, listen: bool = True) -> None:
        self.connection.open(TIMEOUT)
        if listen:
            self.connection.subscribe(TIMEOUT)

    async def close(self) -> None:
        self.connection.close()

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return self.connection.apply(commands, TIMEOUT)

    async def notifications(self, timeout: float | None) -> Sequence[Notification]:
        return self.connection.notifications(timeout)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self.connection.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        return self.connection.examine()
