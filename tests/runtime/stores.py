"""Stores for tests of what lies above them: one that takes its time, one that can be told to fail."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from dibs.clock import Clock
from dibs.errors import DibsError
from dibs.model import Capabilities, Command, Notification, Reply
from dibs.runtime.batcher import apply_over
from dibs.stores.aio import submit_in_task
from dibs.stores.memory import MemoryStore
from dibs.stores.port import AsyncConnection, BlockingConnection, Deliver, Done, GiveUp, Store

type Gate = Callable[[Sequence[Command]], None]


class TappedStore(Store):
    """A memory store whose connections tell what travels, and can be held up or made to fail.

    `before` and `after` are called with each batch, on either side of its application, and may raise.
    With `turns` an event loop's calls take so many turns of the loop each way; nothing is then applied
    in place.
    """

    def __init__(self, *, clock: Clock | None = None, turns: int = 0, store: Any = None) -> None:
        self.inner: Store = store or MemoryStore(f"memory://{uuid4()}", clock=clock)
        self.url = self.inner.url
        self.turns = turns
        self.batches: list[Sequence[Command]] = []
        """What was sent by event loops."""
        self.kept: list[Sequence[Command]] = []
        """What was sent by keepers and threads."""
        self.before: Gate = lambda _: None
        self.after: Gate = lambda _: None
        self.listening: Gate = lambda _: None
        self.arriving: Callable[[Sequence[Notification]], None] = lambda _: None
        """Is called with notifications; if it raises, they are lost, and the connection with them."""
        self.hold: asyncio.Event | None = None
        """While it isn't set, calls of event loops wait for it before they are applied."""

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def async_connection(self) -> AsyncConnection:
        return TappedAsyncConnection(self, self.inner.async_connection())

    def blocking_connection(self) -> BlockingConnection:
        return TappedBlockingConnection(self, self.inner.blocking_connection())


class TappedAsyncConnection:
    """One connection of an event loop."""

    parallel = 1

    def __init__(self, store: TappedStore, inner: AsyncConnection) -> None:
        self._store = store
        self._inner = inner
        self.close, self.scan = inner.close, inner.scan
        self.examine, self.after_fork = inner.examine, inner.after_fork

    @property
    def inbox(self) -> str:
        return self._inner.inbox

    async def open(self) -> None:
        await self._turns()
        self._store.before(())
        await self._inner.open()

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        if self._store.turns or self._store.hold is not None:
            return submit_in_task(self._apply(commands), done)
        self._store.batches.append(tuple(commands))
        self._store.before(commands)

        def back(result: Sequence[Reply] | DibsError) -> None:
            self._store.after(commands)
            done(result)

        return self._inner.submit(commands, back)

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        self._store.batches.append(tuple(commands))
        await self._turns()
        self._store.before(commands)
        if self._store.hold is not None:
            await self._store.hold.wait()
        replies = await apply_over(self._inner, commands)
        await self._turns()
        self._store.after(commands)
        return replies

    async def _turns(self) -> None:
        for _ in range(self._store.turns):
            await asyncio.sleep(0)

    async def subscribe(self, deliver: Deliver) -> None:
        self._store.listening(())

        def arrive(news: Sequence[Notification] | DibsError) -> None:
            try:
                if not isinstance(news, DibsError):
                    self._store.arriving(news)
            except DibsError as error:
                news = error
            deliver(news)

        await self._inner.subscribe(arrive)


class TappedBlockingConnection:
    """One connection of a thread."""

    def __init__(self, store: TappedStore, inner: BlockingConnection) -> None:
        self._store = store
        self._inner = inner
        self.close, self.subscribe, self.wake = inner.close, inner.subscribe, inner.wake
        self.scan, self.examine, self.after_fork = inner.scan, inner.examine, inner.after_fork

    @property
    def inbox(self) -> str:
        return self._inner.inbox

    def open(self, timeout: float) -> None:
        self._store.before(())
        self._inner.open(timeout)

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        self._store.kept.append(tuple(commands))
        self._store.before(commands)
        replies = self._inner.apply(commands, timeout)
        self._store.after(commands)
        return replies

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        self._store.listening(())
        news = self._inner.notifications(timeout)
        self._store.arriving(news)
        return news
