"""Several who want the same lock, in either world: tasks of one loop, or threads."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dibs.errors import DibsError
from tests.locks.worlds import World
from tests.runtime.stores import TappedStore

PATIENCE = 20.0

TRUSTED = 26.7
"""A ttl less the margin."""


async def until(w: World, condition: Callable[[], Any]) -> None:
    """Wait until something is so; in threads the others go on meanwhile."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        assert time.monotonic() < end, "it never came about"
        if w.is_async:
            await asyncio.sleep(0)
        else:
            time.sleep(0.0005)


class Hand:
    """One who acquires, holds until it is told to let go, and says how it ended."""

    def __init__(self, w: World, name: str, lock: Any, served: list[str], **options: Any) -> None:
        self.name = name
        self.lease: Any = None
        self.error: BaseException | None = None
        self.over = False
        self._w = w
        self._served = served
        self._acquire: Callable[[], Any] = lambda: lock.acquire(**options)
        self._told = asyncio.Event() if w.is_async else threading.Event()
        self.task = asyncio.create_task(self._work()) if w.is_async else None
        self._thread = None if w.is_async else threading.Thread(target=self._work_blocking)
        if self._thread is not None:
            self._thread.daemon = True
            self._thread.start()

    async def _work(self) -> None:
        assert isinstance(self._told, asyncio.Event)
        try:
            self._serve(await self._acquire())
            await self._told.wait()
            await self.lease.release()
        except (DibsError, asyncio.CancelledError) as error:
            self.error = error
        self.over = True

    def _work_blocking(self) -> None:
        assert isinstance(self._told, threading.Event)
        try:
            self._serve(self._acquire())
            self._told.wait()
            self.lease.release()
        except DibsError as error:
            self.error = error
        self.over = True

    def _serve(self, lease: Any) -> None:
        self._served.append(self.name)
        self.lease = lease

    @property
    def settled(self) -> bool:
        """It holds, or has ended."""
        return self.lease is not None or self.over

    async def holds(self) -> Any:
        """Wait until it does; its lease."""
        await until(self._w, lambda: self.settled)
        assert self.error is None, self.error
        return self.lease

    async def lets_go(self) -> None:
        """Tell it to release, and wait until it has."""
        self._told.set()
        await until(self._w, lambda: self.over)

    async def fails(self) -> BaseException:
        """Wait until its acquire has failed; why."""
        await until(self._w, lambda: self.over)
        assert self.error is not None
        return self.error


def site(w: World, **options: Any) -> tuple[TappedStore, Any]:
    """A store that tells what travels and can be made to fail, and a client of it."""
    store = TappedStore(store=w.store)
    client = w.another(store, **options)
    if not w.is_async:
        client.session.keeper.listen(
            5
        )  # as after a first wait; pushes reach its threads from here on
    return store, client


async def later(w: World, seconds: float) -> None:
    """Let time pass, and what is due be done."""
    w.clock.advance(seconds)
    await w.turn()
    if not w.is_async:
        time.sleep(0.03)  # threads have to get their turn, and nothing tells that they had it
