"""A store for tests of what lies above it: it takes its time, records what travels, and can fail."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from dibs.clock import Clock
from dibs.errors import DibsError
from dibs.model import Command, Notification, Reply
from dibs.runtime.batcher import apply_over
from dibs.stores.aio import submit_in_task
from dibs.stores.memory import MemoryStore
from dibs.stores.port import AsyncConnection, BlockingConnection, Deliver, Done, GiveUp
from tests.changed_store import ChangedAsyncConnection, ChangedBlockingConnection, ChangedStore

type Gate = Callable[[Sequence[Command]], None]


class TappedStore(ChangedStore):
    """A memory store whose connections tell what travels, and can be held up or made to fail.

    `before` and `after` are called with each batch, on either side of its application, and may raise.
    With `turns` an event loop's calls take so many turns of the loop each way; nothing is then applied
    in place.
    """

    def __init__(self, *, clock: Clock | None = None, turns: int = 0, store: Any = None) -> None:
        super().__init__(store or MemoryStore(f"memory://{uuid4()}", clock=clock))
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

    def commands(self, commands: Sequence[Command]) -> Sequence[Command]:
        self.before(commands)
        return commands

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        self.after(commands)
        return replies

    def async_connection(self) -> AsyncConnection:
        return TappedAsyncConnection(self, self.inner.async_connection())

    def blocking_connection(self) -> BlockingConnection:
        return TappedBlockingConnection(self, self.inner.blocking_connection())


class TappedAsyncConnection(ChangedAsyncConnection):
    def __init__(self, store: TappedStore, inner: AsyncConnection) -> None:
        super().__init__(store, inner)
        self._tapped = store
        self.parallel = 1
        self.open = self._open

    async def _open(self) -> None:
        await self._turns()
        self._tapped.before(())
        await self._inner.open()

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        self._tapped.batches.append(tuple(commands))
        if self._tapped.turns or self._tapped.hold is not None:
            return submit_in_task(self._apply(commands), done)
        return super().submit(commands, done)

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        await self._turns()
        self._tapped.before(commands)
        if self._tapped.hold is not None:
            await self._tapped.hold.wait()
        replies = await apply_over(self._inner, commands)
        await self._turns()
        self._tapped.after(commands)
        return replies

    async def _turns(self) -> None:
        for _ in range(self._tapped.turns):
            await asyncio.sleep(0)

    async def subscribe(self, deliver: Deliver) -> None:
        self._tapped.listening(())

        def arrive(news: Sequence[Notification] | DibsError) -> None:
            try:
                if not isinstance(news, DibsError):
                    self._tapped.arriving(news)
            except DibsError as error:
                news = error
            deliver(news)

        await self._inner.subscribe(arrive)


class TappedBlockingConnection(ChangedBlockingConnection):
    def __init__(self, store: TappedStore, inner: BlockingConnection) -> None:
        super().__init__(store, inner)
        self._tapped = store
        self.open = self._open

    def _open(self, timeout: float) -> None:
        self._tapped.before(())
        self._inner.open(timeout)

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        self._tapped.kept.append(tuple(commands))
        return super().apply(commands, timeout)

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        self._tapped.listening(())
        news = self._inner.notifications(timeout)
        self._tapped.arriving(news)
        return news
