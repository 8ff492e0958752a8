"""A store of which something is changed on its way: commands, replies, notifications or pages."""

from collections.abc import Sequence
from typing import Any

from dibs.errors import DibsError
from dibs.model import Capabilities, Command, Notification, Page, Reply
from dibs.stores.port import AsyncConnection, BlockingConnection, Deliver, Done, GiveUp, Store


class ChangedStore(Store):
    """Changes nothing: override what is to be changed."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self.connections = store.connections
        self.inner = store

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def commands(self, commands: Sequence[Command]) -> Sequence[Command]:
        return commands

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        return replies

    def pushes(self, pushes: Sequence[Notification]) -> Sequence[Notification]:
        return pushes

    def page(self, page: Page) -> Page:
        return page

    def async_connection(self) -> Any:
        return ChangedAsyncConnection(self, self.inner.async_connection())

    def blocking_connection(self) -> Any:
        return ChangedBlockingConnection(self, self.inner.blocking_connection())


class Changed[C]:
    """What is not changed is the connection's own."""

    def __init__(self, store: ChangedStore, inner: C) -> None:
        self._store = store
        self._inner: C = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ChangedAsyncConnection(Changed[AsyncConnection]):
    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        def changed(result: Sequence[Reply] | DibsError) -> None:
            done(result if isinstance(result, DibsError) else self._store.replies(result, commands))

        return self._inner.submit(self._store.commands(commands), changed)

    async def subscribe(self, deliver: Deliver) -> None:
        def changed(news: Sequence[Notification] | DibsError) -> None:
            if isinstance(news, DibsError):
                deliver(news)
            elif pushes := self._store.pushes(news):
                deliver(pushes)

        await self._inner.subscribe(changed)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._store.page(await self._inner.scan(prefix, cursor, limit))


class ChangedBlockingConnection(Changed[BlockingConnection]):
    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        replies = self._inner.apply(self._store.commands(commands), timeout)
        return self._store.replies(replies, commands)

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        return self._store.pushes(self._inner.notifications(timeout))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._store.page(self._inner.scan(prefix, cursor, limit))
