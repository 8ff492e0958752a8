"""Blocking connections over asyncio ones: their work is done in the loop of a daemon thread, one a store."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import FreshLock, Gate, on_fork, start_thread
from dibs.stores.port import Deliver

GRACE = 0.3
"""Seconds that commands under way have when the loop ends."""

THREAD_END = 1.0
"""Seconds that the last connection waits for the end of the thread."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks that the thread still runs, for a caller without a time limit."""

LONG_CALL = 30.0
"""Seconds that listing a page, or examining the store, may take."""

CLOSE_TIMEOUT = 3.0
"""Seconds that closing a connection may take."""


class LoopThread:
    """A thread with an event loop. It begins with the first connection and ends with the last."""

    def __init__(self, name: str, store: str) -> None:
        """`store` is its URL, for errors."""
        self._name = name
        self._store = store
        self._lock = FreshLock()
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: Gate | None = None
        """Opens when the thread has ended. None: no thread could be started, and callers run the loop."""
        self._users: set[object] = set()

    def enter(self, user: object) -> None:
        """Start the thread, if this is the first connection."""
        with self._lock.held:
            self._users.add(user)
            if self._loop is None:
                self._start()

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            ended = start_thread(partial(self._run, loop), self._name)
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            ended = None
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            raise
        self._loop, self._ended = loop, ended

    def leave(self, user: object) -> None:
        """The last connection that leaves ends the thread, and waits a moment for that."""
        with self._lock.held:
            self._users.discard(user)
            if self._users or self._loop is None:
                return
            loop, ended = self._loop, self._ended
            self._loop = self._ended = None
        if ended is None:
            self._finish(loop)
        else:
            loop.call_soon_threadsafe(loop.stop)
            ended.wait(THREAD_END)

    def do[T](self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop, and wait for it. An interrupt of the caller cancels it.

        Raises `BackendUnavailable` if it takes longer than `timeout` seconds, or if the thread has ended.
        """
        loop, ended = self._loop, self._ended
        if loop is None:
            work.close()
            raise RuntimeError("no connection has entered")
        if ended is None:
            try:
                return loop.run_until_complete(asyncio.wait_for(work, timeout))
            except TimeoutError:
                raise _no_answer(self._store, timeout or 0.0) from None
        job = _Job(work, self._store)
        try:
            loop.call_soon_threadsafe(job.begin)
            return job.result(ended, timeout)
        except BaseException:
            job.give_up(loop)
            raise

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            self._finish(loop)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let what is under way end, or cancel it."""
        try:
            left = asyncio.all_tasks(loop)
            if left:
                _, left = loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
        finally:
            loop.close()

    def after_fork(self) -> None:
        """In the child: the thread is gone, and its loop cannot be closed without harm to the parent's."""
        if self._loop is not None:
            keep_for_ever(self._loop, self._users)
        self._reset()


class _Job[T]:
    """A coroutine for the loop, and the gate at which another thread waits for it.

    It is no future of the standard library: an interrupt can leave that one's lock taken, and then the loop
    would wait for ever.
    """

    def __init__(self, work: Coroutine[Any, Any, T], store: str) -> None:
        self._work = work
        self._store = store
        self._done = Gate()
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """In the loop."""
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._done.open())

    def result(self, ended: Gate, timeout: float | None) -> T:
        """Wait for the result. Raises what the coroutine raised."""
        pause = CHECK_INTERVAL if timeout is None else timeout
        while not self._done.wait(pause):
            if timeout is not None:
                raise _no_answer(self._store, timeout)
            if ended.wait(0):
                raise BackendUnavailable(f"{self._store}: the connection was closed meanwhile")
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise BackendUnavailable(
                f"{self._store}: the connection was closed meanwhile"
            ) from None

    def give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody waits for it any more."""
        try:
            loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            self._work.close()  # the loop has ended

    def _cancel(self) -> None:
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()


def _no_answer(store: str, timeout: float) -> BackendUnavailable:
    return BackendUnavailable(
        f"{store} did not answer within {timeout:.3g} s; check the store and the network"
    )


def keep_for_ever(*things: Any) -> None:
    """Keep objects of the parent process, even at the end of the interpreter: their end could block."""
    import ctypes

    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class LoopConnection(Protocol):
    """What is needed of an `AsyncConnection` whose work is done in the loop of a `LoopThread`."""

    @property
    def inbox(self) -> str: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def apply_within(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        """Apply a batch, and return its replies. Raises `BackendUnavailable` after `timeout` seconds."""

    async def subscribe(self, deliver: Deliver) -> None: ...
    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page: ...
    async def examine(self) -> Sequence[Finding]: ...


class BlockingLoopConnection:
    """See `BlockingConnection`: its work is done in the loop of a `LoopThread`."""

    def __init__(self, thread: LoopThread, make: Callable[[], LoopConnection]) -> None:
        self._thread = thread
        self._make = make
        self._inner: LoopConnection | None = None
        self._arrived: SimpleQueue[Sequence[Notification] | DibsError] = SimpleQueue()
        on_fork(self)

    @property
    def inbox(self) -> str:
        inner = self._inner
        return "" if inner is None else inner.inbox

    def open(self, timeout: float) -> None:
        self._thread.do(self._enter().open(), timeout)

    def close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                with suppress(BackendUnavailable):  # what is left there ends by itself
                    self._thread.do(inner.close(), CLOSE_TIMEOUT)
            finally:
                self._thread.leave(self)

    def _enter(self) -> LoopConnection:
        if self._inner is None:
            try:
                self._thread.enter(self)
                self._inner = self._make()
            finally:
                if self._inner is None:
                    self._thread.leave(self)
        return self._inner

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        if not commands:
            return ()
        return self._thread.do(self._enter().apply_within(commands, timeout))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._thread.do(self._enter().scan(prefix, cursor, limit), LONG_CALL)

    def examine(self) -> Sequence[Finding]:
        return self._thread.do(self._enter().examine(), LONG_CALL)

    def subscribe(self, timeout: float) -> None:
        self._thread.do(self._enter().subscribe(self._arrived.put), timeout)

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        try:
            news = self._arrived.get(timeout=timeout)
        except Empty:
            return ()
        if isinstance(news, DibsError):
            raise news
        return news

    def wake(self) -> None:
        self._arrived.put(())

    def after_fork(self) -> None:
        """In the child: nothing of the parent's can be used, nor closed."""
        if self._inner is not None:
            keep_for_ever(self._inner)
        self._inner = None
        self._arrived = SimpleQueue()
