"""Activities locked in the document's way or in ours, over the same Redis: what a test needs of either."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis
from temporalio.worker import Interceptor

import dibs
from dibs.temporal import LockInterceptor, current_lock, needs_lock
from tests.temporal import document
from tests.temporal.needs_lock_world import World, working

PAUSE = 0.05
"""The document's minute between two tries, shortened to a 1,200th where a test doesn't say otherwise."""

SEED = 11
"""Of the document's lots: with four of five slots taken, the free one isn't the next that it draws."""


class Way:
    """One of both, `document` or `ours`."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.ours = name == "ours"
        self.url = url
        self.pause = PAUSE
        self.awaits_twice = False
        self.locks = document.DocumentLocks(url, random.Random(SEED))

    def needs[F: Callable[..., Any]](self, name: str, slots: int = 1) -> Callable[[F], F]:
        """Its decorator, which both write alike."""
        made = needs_lock if self.ours else document.needs_lock
        return made(max_locks=slots, lock_name=name)

    def over(self, url: str) -> "Way":
        """The same, by another way to Redis."""
        return Way(self.name, url)

    def interceptor(self, *functions: Callable[..., Any]) -> Interceptor:
        """The document's knows these functions, and ours needs not."""
        if self.ours:
            return LockInterceptor(backend=self.url)
        return document.DocumentInterceptor(
            functions, pause=self.pause, awaits_twice=self.awaits_twice
        )

    @asynccontextmanager
    async def working(
        self,
        address: str,
        *functions: Callable[..., Any],
        known: Callable[..., Any] | None = None,
        installed: bool = True,
        also: Interceptor | None = None,
    ) -> AsyncGenerator[World]:
        """A worker with it. It knows one more function than it serves, if `known` is given."""
        its_own = [] if self.ours else self.locks.activities
        interceptors = [self.interceptor(*functions, *([known] if known else []))]
        async with working(
            address,
            [*functions, *its_own],
            interceptors=(interceptors if installed else []) + ([also] if also else []),
        ) as world:
            yield world

    async def held(self, name: str) -> int:
        """How many slots of it are taken."""
        if not self.ours:
            with redis.Redis.from_url(self.url) as client:
                return len(list(client.scan_iter(f"{name}:*")))
        async with dibs.connect(self.url) as client:
            return len((await client.status(name, "semaphore")).holders)

    async def end(self, name: str) -> None:
        """End what is held of it from outside, as its lease's end does."""
        if not self.ours:
            with redis.Redis.from_url(self.url) as client:
                client.delete(*client.scan_iter(f"{name}:*"))
            return
        async with dibs.connect(self.url) as client:
            await client.revoke(name, kind="semaphore", reason="ended by the test")

    def remaining(self, key: str) -> float:
        """For how many seconds the activity that asks has its lock, renewals aside."""
        if self.ours:
            return current_lock().remaining
        with redis.Redis.from_url(self.url) as client:
            return float(client.pttl(key)) / 1000
