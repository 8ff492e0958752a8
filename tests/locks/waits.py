"""Waiters beside a test, in a task or in a thread, and time that moves until something has happened."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from dibs.runtime.port import step
from tests.locks.worlds import World

PATIENCE = 30.0
"""Real seconds within which what must happen happens."""


type Body = Callable[[], Coroutine[Any, Any, Any]]


class Beside:
    """A coroutine that runs beside the test: as a task, or stepped in a thread."""

    def __init__(self, w: World, body: Body) -> None:
        self._w = w
        self._task: asyncio.Task[Any] | None = None
        self._future: Future[Any] = Future()
        if w.is_async:
            self._task = asyncio.create_task(body())
        else:
            threading.Thread(target=self._run, args=(body,), daemon=True).start()

    def _run(self, body: Body) -> None:
        try:
            self._future.set_result(step(body()))
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        return self._future.done() if self._task is None else self._task.done()

    async def result(self) -> Any:
        """What it returned, or raises what it raised."""
        if self._task is not None:
            return await asyncio.wait_for(self._task, PATIENCE)
        return self._future.result(PATIENCE)

    def cancel(self) -> None:
        assert self._task is not None, "a thread can't be cancelled"
        self._task.cancel()

    async def error(self) -> BaseException | None:
        try:
            await self.result()
        except Exception as error:
            return error
        return None


class Holder:
    """Acquires beside the test, and holds until the test lets it go."""

    def __init__(self, w: World, lock: Any, **options: Any) -> None:
        self._w, self._may_go = w, False
        self._acquire: Callable[[], Any] = lambda: lock.acquire(**options)
        self.lease: Any = None
        self.beside = Beside(w, self._hold)

    async def _hold(self) -> None:
        self.lease = await self._w.get(self._acquire())
        await until(self._w, lambda: self._may_go)
        await self._w.get(self.lease.release())

    @property
    def settled(self) -> bool:
        """It holds, or has failed."""
        return self.lease is not None or self.beside.done

    async def holds(self) -> Any:
        await until(self._w, lambda: self.settled)
        if self.lease is None:
            await self.beside.result()
        return self.lease

    async def lets_go(self) -> None:
        self._may_go = True
        await self.beside.result()


async def is_so(condition: Callable[[], Any]) -> bool:
    """Whether that holds; the condition may be a coroutine function."""
    found = condition()
    return bool(await found if inspect.isawaitable(found) else found)


async def until(w: World, condition: Callable[[], Any], step: float = 0) -> None:
    """Let the others go on until that is so, and move the clock in such steps."""
    end = time.monotonic() + PATIENCE
    while not await is_so(condition):
        assert time.monotonic() < end, "it never came to that"
        if step:
            w.clock.advance(step)
        for _ in range(4 if step else 1):
            await pause(w)


async def time_passes(w: World, condition: Callable[[], Any], step: float = 0.25) -> None:
    await until(w, condition, step)


async def pause(w: World) -> None:
    """Let everybody go on for a moment."""
    await let_go_on(w, 0.001)


async def let_go_on(w: World, seconds: float) -> None:
    """Let the background do what it wants to, in real time."""
    if w.is_async:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


async def until_queued(w: World, name: str, count: int = 1, kind: Any = "lock") -> None:
    async def queued() -> bool:
        return bool((await w.get(w.client.status(name, kind))).waiting == count)

    await until(w, queued)


async def ticking(w: World, action: Callable[[], Any]) -> Any:
    """Run an action that waits, while the clock is moved from outside, but not to renewals."""
    over, end = threading.Event(), w.clock.now() + 30

    def tick() -> None:
        while not over.is_set():
            due = w.clock.next_due
            if due is not None and due <= end:
                w.clock.advance(max(due - w.clock.now(), 0.0))
            over.wait(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        return await w.get(action())
    finally:
        over.set()
        if w.is_async:
            await asyncio.to_thread(thread.join)
        else:
            thread.join()


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()
