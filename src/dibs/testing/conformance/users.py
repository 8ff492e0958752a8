"""Users of the store under test: clients of both sides, and threads beside them."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import dibs
import dibs.sync
from dibs.core.names import Kind
from dibs.model import Status
from dibs.session import StoreSession
from dibs.testing.conformance.world import PATIENCE, World

type Body = Callable[[Any], Awaitable[None]]


async def now(answer: Any) -> Any:
    """Return the result of a call, awaited on the asyncio side."""
    return await answer if inspect.isawaitable(answer) else answer


class Users:
    """Clients of the store under test, on the side under test, and threads beside them."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.kind = b"lock"
        self._threads: list[threading.Thread] = []
        self._clients: list[Any] = []

    def client(self, *, blocking: bool | None = None) -> Any:
        """Another client; nothing is shared with the others but the store."""
        world = self.world
        if blocking is None:
            blocking = world.mode == "blocking"
        kind: Any = dibs.sync.Client if blocking else dibs.Client
        client = kind(StoreSession(world.store, clock=world.clock if world.manual else None))
        self._clients.append(client)
        return client

    def lock(self, client: Any, **options: Any) -> Any:
        """The case's lock."""
        options.setdefault("ttl", 30 * self.world.second)
        return client.lock(self.name, **options)

    @property
    def name(self) -> bytes:
        """The name of the case's lock."""
        return self.world.key().partition(b":")[2]

    def when_queued(self, act: Callable[[], object], kind: Kind = "lock") -> threading.Thread:
        """Do something in another thread as soon as a waiter is queued for the case's lock."""
        watcher = self.client(blocking=True)

        def watch() -> None:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                status: Status = watcher.status(self.name, kind)
                if status.waiting:
                    act()
                    return
                time.sleep(0.002)

        thread = threading.Thread(target=watch)
        thread.start()
        self._threads.append(thread)
        return thread

    async def close(self) -> None:
        """Wait for the threads, then close all clients."""
        for client in self._clients:
            if self.world.mode == "async" and not isinstance(client, dibs.sync.Client):
                await client.close()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            if isinstance(client, dibs.sync.Client):
                client.close()


def using(
    body: Callable[[Any, World, Users], Awaitable[None]],
) -> Callable[[Any, World], Any]:
    """A case with users."""

    async def with_users(self: Any, world: World) -> None:
        users = Users(world)
        try:
            await body(self, world, users)
        finally:
            await users.close()

    with_users.__name__ = body.__name__
    with_users.__doc__ = body.__doc__
    return with_users


async def within(world: World, lock: Any, body: Body) -> None:
    """Run `body` inside a `with` block of the side under test."""
    if world.mode == "async":
        async with lock as lease:
            await body(lease)
    else:
        with lock as lease:
            await body(lease)


async def in_thread(call: Callable[[], Any]) -> Any:
    """Call something blocking from inside a loop."""
    return await asyncio.to_thread(call)


async def call(world: World, blocking: Callable[[], Any]) -> Any:
    """Call something blocking on either side."""
    return await in_thread(blocking) if world.mode == "async" else blocking()


def list_keys(found: Any) -> list[bytes]:
    """The keys of a blocking client's list."""
    return [status.key for status in found]
