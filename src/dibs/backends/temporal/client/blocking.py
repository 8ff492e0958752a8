"""The backend of a thread: it waits while the store's own thread does the work, and nothing suspends."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from dibs.backends.temporal.client.loop_thread import LoopThread
from dibs.backends.temporal.client.looped import LoopBackend
from dibs.backends.temporal.client.threads import keep_for_ever
from dibs.errors import BackendUnavailable
from dibs.fork import on_fork
from dibs.model import Command, Finding, Page, Reply, Wakeup

STARTS = 3.0
"""So long connecting, and the start of a broker, may take on a busy machine, in seconds."""

CLOSES = 3.0
"""So long closing may take, in seconds."""


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
            try:
                self._thread.enter(self)
                self._inner = self._thread.do(self._opened(listen))
            finally:
                if self._inner is None:
                    self._thread.leave(self)

    async def _opened(self, listen: bool) -> LoopBackend:
        inner = self._make()
        await inner.open(listen=listen)
        return inner

    async def close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                with suppress(BackendUnavailable):  # what is left there ends by itself
                    self._thread.do(inner.close(), CLOSES)
            finally:
                self._thread.leave(self)

    def _do[T](self, work: Callable[[LoopBackend], Coroutine[Any, Any, T]]) -> T:
        assert self._inner is not None, "open comes first"
        return self._thread.do(work(self._inner))

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return self._do(lambda inner: inner.apply(commands)) if commands else ()

    async def apply_within(self, commands: Sequence[Command], seconds: float) -> Sequence[Reply]:
        """Likewise, or raise `BackendUnavailable` after so long, and no sooner than a slow start takes."""
        return self._do(lambda inner: inner.apply_within(commands, max(seconds, STARTS)))

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
        """In the child: nothing of the parent's is of use here, nor can it be thrown away."""
        if self._inner is not None:
            keep_for_ever(self._inner)
        self._inner = None
