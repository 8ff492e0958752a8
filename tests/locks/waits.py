"""Waiters beside a test, in a task or in a thread, and time that moves until something has happened."""

import asyncio
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

    async def error(self) -> BaseException | None:
        """What it raised."""
        try:
            await self.result()
        except Exception as error:
            return error
        return None


async def until(w: World, condition: Callable[[], bool]) -> None:
    """Let everybody go on until that is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        await pause(w)


async def pause(w: World) -> None:
    """Let everybody go on for a moment."""
    if w.is_async:
        await asyncio.sleep(0.001)
    else:
        time.sleep(0.001)


async def time_passes(w: World, condition: Callable[[], bool], step: float = 0.25) -> float:
    """Move the clock in small steps until that is so; tell how far it has moved."""
    passed, end = 0.0, time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {passed} s"
        w.clock.advance(step)
        passed += step
        for _ in range(5):
            await pause(w)
    return passed


async def until_queued(w: World, name: str, count: int, kind: Any = "lock") -> None:
    """Let everybody go on until so many wait."""
    end = time.monotonic() + PATIENCE
    while (await w.get(w.client.status(name, kind))).waiting != count:
        assert time.monotonic() < end, "they never queued"
        await pause(w)


def cancelling() -> int:
    """How many cancellations of the running task are counted."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()
