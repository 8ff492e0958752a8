"""The event loop that blocking callers' work is done in: a daemon thread for each store in use."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from leasehold.backends.temporal.calling import Caller
from leasehold.backends.temporal.connecting import keep_for_ever, let_go
from leasehold.fork import FreshLock, on_fork

LANDS = 0.3
"""So long at the end is waited for what is under way, in seconds."""

ENDS = 1.0
"""So long whoever leaves last waits for the thread."""


class LoopThread:
    """Begins with the first that enters and ends with the last that leaves."""

    def __init__(self, new_caller: Callable[[], Caller]) -> None:
        self._new_caller = new_caller
        self._lock = FreshLock()
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._users = 0
        self._caller: Caller | None = None

    def caller(self) -> Caller:
        """What all threads' commands gather at; to be asked for in the loop."""
        if self._caller is None:
            self._caller = self._new_caller()
        return self._caller

    def enter(self) -> None:
        """Somebody has work for it."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._start(self._loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        name = "leasehold-temporal"
        thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the interpreter is about to end, and starts no threads any more
            self._thread = None

    def leave(self) -> None:
        """Somebody has no more work for it. Who leaves last waits a little for its end."""
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = self._caller = None
        if thread is None:
            _finish(loop)
        else:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(ENDS)

    def do[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Wait until it is done there. An interrupt of the caller gives it up."""
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("nobody has entered")
        if self._thread is None:
            return loop.run_until_complete(work)
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def after_fork(self) -> None:
        """In the child: the thread is gone, and its loop with all in it can't be brought to an end."""
        if self._loop is not None:
            keep_for_ever(self._loop)
        self._reset()


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
