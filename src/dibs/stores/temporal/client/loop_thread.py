"""The event loop that blocking callers' work is done in: a daemon thread for each store in use."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import FreshLock, Gate, on_fork, start_thread
from dibs.stores.temporal.client.aio import AsyncTemporalConnection
from dibs.stores.temporal.client.calling import Caller
from dibs.stores.temporal.client.threads import keep_for_ever, let_go

LANDS = 0.3
"""So long at the end is waited for what is under way, in seconds."""

ENDS = 1.0
"""So long whoever leaves last waits for the thread."""

LOOKS = 1.0
"""So often whoever waits for work that is done there looks whether the thread still runs, in seconds."""


class LoopThread:
    """Begins with the first that enters and ends with the last that leaves."""

    def __init__(self, new_caller: Callable[[], Caller]) -> None:
        self._new_caller = new_caller
        self._lock = FreshLock()
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: Gate | None = None
        """Opens with the thread's end; None: there is no thread, and who has work does it."""
        self._users: set[object] = set()
        self._caller: Caller | None = None

    def caller(self) -> Caller:
        """What all threads' commands gather at; to be asked for in the loop."""
        if self._caller is None:
            self._caller = self._new_caller()
        return self._caller

    def enter(self, user: object) -> None:
        """Somebody has work for it."""
        with self._lock.held:
            self._users.add(user)
            if self._loop is None:
                self._start()

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            ended = start_thread(partial(_run, loop), "dibs-temporal")
        except RuntimeError:  # the interpreter is about to end, and starts no threads any more
            ended = None
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            raise
        self._loop, self._ended = loop, ended

    def leave(self, user: object) -> None:
        """Somebody has no more work for it. Who leaves last waits a little for its end."""
        with self._lock.held:
            self._users.discard(user)
            if self._users or self._loop is None:
                return
            loop, ended = self._loop, self._ended
            self._loop = self._ended = self._caller = None
        if ended is None:
            _finish(loop)
        else:
            loop.call_soon_threadsafe(loop.stop)
            ended.wait(ENDS)

    def do[T](self, work: Coroutine[Any, Any, T], within: float | None = None) -> T:
        """Wait until it is done there. An interrupt of the caller gives it up.

        Raises `BackendUnavailable` if that takes longer than `within` seconds, or will never be.
        """
        loop, ended = self._loop, self._ended
        if loop is None:
            work.close()
            raise RuntimeError("nobody has entered")
        if ended is None:
            return loop.run_until_complete(asyncio.wait_for(work, within))
        errand = _Errand(work)
        try:
            loop.call_soon_threadsafe(errand.begin)
            return errand.outcome(ended, within)
        except BaseException:
            errand.give_up(loop)
            raise

    def after_fork(self) -> None:
        """In the child: the thread is gone, and its loop with all in it can't be brought to an end."""
        if self._loop is not None:
            keep_for_ever(self._loop, self._caller, self._users)
        self._reset()


class _Errand[T]:
    """Work for the loop, and the gate at which another thread waits for it.

    It is no future of the standard library's, whose lock an interrupt may leave taken: the loop itself
    would wait for that, and everybody for the loop.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._done = Gate()
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """In the loop."""
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._done.open())

    def outcome(self, ended: Gate, within: float | None) -> T:
        """What came of it. Raises what the work raised."""
        pause = LOOKS if within is None else within
        while not self._done.wait(pause):
            if within is not None or ended.wait(0):
                raise BackendUnavailable("the store's own thread did not answer")
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise BackendUnavailable("the connection was closed meanwhile") from None

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


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped."""
    try:
        loop.run_forever()
    finally:
        _finish(loop)


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Let what is under way land, or give it up."""
    try:
        left = asyncio.all_tasks(loop)
        if left:
            _, left = loop.run_until_complete(asyncio.wait(left, timeout=LANDS))
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LANDS))
    finally:
        loop.close()
        let_go()  # this may be the end of the program


STARTS = 3.0
"""So long connecting, and the start of a broker, may take on a busy machine, in seconds."""

CLOSES = 3.0
"""So long closing may take, in seconds."""


class BlockingTemporalConnection:
    """See `BlockingConnection`: its work is done in the loop of that thread."""

    def __init__(self, thread: LoopThread, make: Callable[[], AsyncTemporalConnection]) -> None:
        self._thread = thread
        self._make = make
        self._inner: AsyncTemporalConnection | None = None
        self._arrived: SimpleQueue[Sequence[Notification] | DibsError] = SimpleQueue()
        on_fork(self)

    @property
    def inbox(self) -> str:
        inner = self._inner
        return "" if inner is None else inner.inbox

    def open(self, timeout: float) -> None:
        if self._inner is None:
            try:
                self._thread.enter(self)
                self._inner = self._make()
            finally:
                if self._inner is None:
                    self._thread.leave(self)

    def close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                with suppress(BackendUnavailable):  # what is left there ends by itself
                    self._thread.do(inner.close(), CLOSES)
            finally:
                self._thread.leave(self)

    def _do[T](self, work: Callable[[AsyncTemporalConnection], Coroutine[Any, Any, T]]) -> T:
        self.open(STARTS)
        assert self._inner is not None
        return self._thread.do(work(self._inner))

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        """See `BlockingConnection`. No time-out is shorter than a slow start takes."""
        if not commands:
            return ()
        return self._do(lambda inner: inner.apply_within(commands, max(timeout, STARTS)))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._do(lambda inner: inner.scan(prefix, cursor, limit))

    def examine(self) -> Sequence[Finding]:
        return self._do(AsyncTemporalConnection.examine)

    def subscribe(self, timeout: float) -> None:
        self._do(lambda inner: inner.subscribe(self._arrived.put))

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
        """In the child: nothing of the parent's is of use here, nor can it be thrown away."""
        if self._inner is not None:
            keep_for_ever(self._inner)
        self._inner = None
        self._arrived = SimpleQueue()
