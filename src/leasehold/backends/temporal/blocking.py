"""The backend of a thread: it waits while the store's own thread does the work, and nothing suspends."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from leasehold.backends.temporal.loop_thread import LoopThread
from leasehold.backends.temporal.looped import LoopBackend
from leasehold.fork import on_fork
from leasehold.model import Command, Finding, Page, Reply, Wakeup


class BlockingBackend:
    """For one thread at a time; its coroutines end without ever suspending."""

    def __init__(self, thread: LoopThread, make: Callable[[], LoopBackend]) -> None:
        self._thread = thread
        self._make = make
        self._inner: LoopBackend | None = None
        on_fork(self)

    @property
    def inbox(self) -> str:
        inner = self._inner
        return "" if inner is None else inner.inbox

    async def open(self, *, listen: bool = True) -> None:
        if self._inner is None:
            self._thread.enter()
            try:
                self._inner = self._thread.do(self._opened(listen))
            finally:
                if self._inner is None:
                    self._thread.leave()

    async def _opened(self, listen: bool) -> LoopBackend:
        inner = self._make()
        await inner.open(listen=listen)
        return inner

    async def close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                self._thread.do(inner.close())
            finally:
                self._thread.leave()

    def _do[T](self, work: Callable[[LoopBackend], Coroutine[Any, Any, T]]) -> T:
        assert self._inner is not None, "open comes first"
        return self._thread.do(work(self._inner))

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return self._do(lambda inner: inner.apply(commands)) if commands else ()

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._do(lambda inner: inner.scan(prefix, cursor, limit))

    async def examine(self) -> Sequence[Finding]:
        """What to know about the server, and whether the queue is served."""
        return self._do(LoopBackend.examine)

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        if not self.inbox:
            return ()
        return self._do(lambda inner: inner.wakeups(timeout))

    def nudge(self) -> None:
        inner = self._inner
        if inner is not None:
            inner.nudge()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._inner = None
