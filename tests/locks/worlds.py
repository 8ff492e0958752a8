"""One text of a test for asyncio and threads: it awaits the asyncio side, and steps the other."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import BackendUnavailable
from dibs.model import Command
from dibs.runtime.port import step
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.testing import ManualClock
from tests.runtime.stores import TappedStore


class World:
    """A memory store under a clock that is moved by hand, and clients of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "async"
        self.module: Any = dibs if self.is_async else dibs.sync
        self.clock = ManualClock()
        self.store: Any = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self._held: list[Any] = []
        self.client = self.another()
        """The one that a test means if it means only one."""

    def another(self, store: Any = None, **options: Any) -> Any:
        """One more client of the same store, as if of another process."""
        session = StoreSession(store or self.store, clock=self.clock, **options)
        return self.module.Client(session)

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        body = self._tidied(body)
        if self.is_async:
            asyncio.run(body)
        else:
            step(body)

    async def _tidied(self, body: Coroutine[Any, Any, None]) -> None:
        await body
        for lease in self._held:
            await self.get(lease.release())

    async def hold(self, lock: Any, **how: Any) -> Any:
        """Acquire a lease, which is released when the test ends."""
        self._held.append(await self.get(lock.acquire(**how)))
        return self._held[-1]

    async def get(self, value: Any) -> Any:
        """What the face of this world returns."""
        return await value if inspect.isawaitable(value) else value

    async def enter(self, manager: Any) -> Any:
        return await manager.__aenter__() if self.is_async else manager.__enter__()

    async def leave(self, manager: Any, error: BaseException | None = None) -> Any:
        about = (type(error) if error else None, error, None)
        return await manager.__aexit__(*about) if self.is_async else manager.__exit__(*about)

    def ask(self, command: Command) -> Any:
        """The store's reply, as another process would get it."""
        return self.store.blocking_connection().apply([command], 10)[0]

    async def turn(self) -> None:
        if self.is_async:
            for _ in range(10):
                await asyncio.sleep(0)


def in_both_worlds(body: Callable[..., Awaitable[None]]) -> Any:
    """Make two tests of a coroutine function that takes a `World`."""

    @pytest.mark.parametrize("world_name", ["async", "sync"])
    @wraps(body)
    def test(world_name: str, **fixtures: Any) -> None:
        world = World(world_name)
        world.run(body(world, **fixtures))  # type: ignore[arg-type]

    parameters = [*inspect.signature(body).parameters.values()][1:]
    name = inspect.Parameter("world_name", inspect.Parameter.KEYWORD_ONLY)
    test.__signature__ = inspect.Signature([*parameters, name])
    return test


KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda client, **options: client.lock("a", **options),
    "acquisition": lambda client, **options: client.lock("a", **options).acquire(),
    "reentrant": lambda client, **options: client.lock("a", reentrant=True, **options),
    "semaphore": lambda client, **options: client.semaphore("a", 2, **options),
    "rwlock": lambda client, **options: client.rwlock("a", **options).write(),
    "allof": lambda client, **options: (
        dibs if isinstance(client, dibs.Client) else dibs.sync
    ).AllOf(client.lock("b", **options), client.lock("a", **options)),
    "leader": lambda client, **options: client.leader_election("a", **options),
}
"""Blocks that hold the resource `a`."""


def site(w: World, **options: Any) -> tuple[TappedStore, Any]:
    """A store that records what travels and can be made to fail, and a client of it."""
    store = TappedStore(store=w.store)
    return store, w.another(store, **options)


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("the store is away")


def heal(store: TappedStore) -> None:
    store.before = store.after = lambda _: None


@contextmanager
def outage(store: TappedStore) -> Iterator[None]:
    store.before = away
    try:
        yield
    finally:
        heal(store)


async def is_free(w: World, lock: Any) -> bool:
    """Whether another client can acquire this (at once, and it gives it back)."""
    lease = await w.get(lock.try_acquire())
    if lease is not None:
        await w.get(lease.release())
    return lease is not None
