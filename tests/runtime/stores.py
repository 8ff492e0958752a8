"""Stores for tests of what lies above them: one that takes its time, one that can be told to fail."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from dibs.clock import Clock
from dibs.model import Command, Page, Reply, Wakeup
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Backend, Store

type Gate = Callable[[Sequence[Command]], None]


class TappedStore:
    """A memory store whose connections tell what travels, and can be held up or made to fail.

    `before` and `after` are called with each batch, on either side of its application, and may raise.
    With `turns` an event loop's calls take so many turns of the loop each way; nothing is then applied
    in place.
    """

    def __init__(self, *, clock: Clock | None = None, turns: int = 0, store: Any = None) -> None:
        self.inner: Store = store or MemoryStore(f"memory://{uuid4()}", clock=clock)
        self.url = self.inner.url
        self.capabilities = self.inner.capabilities
        self.turns = turns
        self.batches: list[Sequence[Command]] = []
        """What was sent by event loops."""
        self.kept: list[Sequence[Command]] = []
        """What was sent by keepers and threads."""
        self.before: Gate = lambda _: None
        self.after: Gate = lambda _: None
        self.listening: Gate = lambda _: None
        self.hold: asyncio.Event | None = None
        """While it isn't set, calls of event loops wait for it before they are applied."""

    def backend(self, *, blocking: bool) -> Backend:
        return TappedBackend(self, self.inner.backend(blocking=blocking), blocking=blocking)


class TappedBackend:
    """One connection of it."""

    def __init__(self, store: TappedStore, inner: Backend, *, blocking: bool) -> None:
        self._store = store
        self._inner = inner
        self._blocking = blocking

    @property
    def inbox(self) -> str:
        return self._inner.inbox

    async def open(self, *, listen: bool = True) -> None:
        await self._turns()
        self._store.before(())
        await self._inner.open(listen=listen)

    async def close(self) -> None:
        await self._inner.close()

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        if self._store.turns or self._store.hold is not None:
            return None
        self._note(commands)
        self._store.before(commands)
        replies = self._inner.apply_now(commands)
        self._store.after(commands)
        return replies

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        self._note(commands)
        self._store.before(commands)
        await self._turns()
        if self._store.hold is not None and not self._blocking:
            await self._store.hold.wait()
        replies = await self._inner.apply(commands)
        await self._turns()
        self._store.after(commands)
        return replies

    def _note(self, commands: Sequence[Command]) -> None:
        (self._store.kept if self._blocking else self._store.batches).append(tuple(commands))

    async def _turns(self) -> None:
        if not self._blocking:
            for _ in range(self._store.turns):
                await asyncio.sleep(0)

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        self._store.listening(())
        return await self._inner.wakeups(timeout)

    def nudge(self) -> None:
        self._inner.nudge()

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._inner.scan(prefix, cursor, limit)

    def after_fork(self) -> None:
        self._inner.after_fork()
