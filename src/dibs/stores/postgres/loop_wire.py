"""A connection whose answers an event loop waits for."""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable

from psycopg.pq.abc import PGconn

from dibs.stores.postgres.wire import Answer, Send, Wire

type Done = Callable[[Answer | Exception], None]
"""Is called once, in the loop."""


class LoopWire(Wire):
    """Its socket is watched for as long as it is open, so that a call costs the loop one turn.

    Calls wait in line here: the next leaves as soon as the last one's answer is read, before anybody
    looks at that, so that the server works while we do.
    """

    def __init__(self, pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pgconn)
        self._loop = loop
        self._line: deque[tuple[Send, Done]] = deque()
        """The first is under way."""
        self._is_full = False
        self._trouble: Exception | None = None
        self.on_pushes: Callable[[list[str]], None] | None = None
        """Takes what is pushed to this connection."""
        self.on_break: Callable[[], None] | None = None
        """Is told that the server has closed it."""
        loop.add_reader(self.fd, _weakly(self._read))
        self._last_rites = weakref.finalize(self, _let_go, pgconn, loop, self.fd, os.getpid())
        self._last_rites.atexit = False

    async def exchange(self, send: Send, patience: float | None) -> Answer:
        answer: asyncio.Future[Answer] = self._loop.create_future()

        def done(found: Answer | Exception) -> None:
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
                answer.exception()  # it is no news where nobody waits any more
            else:
                answer.set_result(found)

        self.start(send, done)
        if patience is None:
            return await answer
        async with asyncio.timeout(patience):
            return await answer

    def start(self, send: Send, done: Done) -> None:
        """Send it when its turn comes, and have `done` called with what came of it."""
        self._line.append((send, done))
        if len(self._line) == 1:
            self._send_first()

    def begin(self, send: Send) -> None:
        if not self.is_cut:
            self.start(send, lambda _: None)

    def _send_first(self) -> None:
        try:
            self._line[0][0]()
            self._flush()
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer is told
            self._broke(error)

    async def next_pushes(self, patience: float) -> list[str]:
        if found := self.pushes():
            return found
        come: asyncio.Future[list[str]] = self._loop.create_future()
        self.on_pushes = lambda pushes: None if come.done() else come.set_result(pushes)
        try:
            async with asyncio.timeout(patience):
                return await come
        except TimeoutError:
            return []
        finally:
            self.on_pushes = None

    def cut(self) -> None:
        if self.is_cut:
            return
        self._last_rites.detach()
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)
        line, self._line = self._line, deque()
        super().cut()
        for _, done in line:  # now they can be asked again, over another connection
            done(self._trouble or ConnectionError("it was closed"))

    def cut_in_child(self) -> None:
        self._last_rites.detach()  # the loop's own files belong to the parent
        super().cut_in_child()

    def _flush(self) -> None:
        done = self.flush()
        if not done and not self._is_full:
            self._loop.add_writer(self.fd, self._write)
        elif done and self._is_full:
            self._loop.remove_writer(self.fd)
        self._is_full = not done

    def _write(self) -> None:
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer is told
            self._broke(error)

    def _read(self) -> None:
        try:
            answer = self.receive()
        except Exception as error:  # noqa: BLE001
            self._broke(error)
            return
        if answer and self._line:
            _, done = self._line.popleft()
            if self._line:
                self._send_first()
            done(answer)
        if self.on_pushes is not None and (pushes := self.pushes()):
            self.on_pushes(pushes)

    def _broke(self, error: Exception) -> None:
        self._trouble = error
        self.cut()
        if self.on_break is not None:
            self.on_break()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """The loop must not keep alive what nobody else does."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call


def _let_go(pgconn: PGconn, loop: asyncio.AbstractEventLoop, fd: int, pid: int) -> None:
    """A connection was dropped without `cut`, in whatever thread collects garbage."""
    if pid != os.getpid():
        return  # it is the parent's

    def end() -> None:
        loop.remove_reader(fd)
        loop.remove_writer(fd)
        pgconn.finish()

    try:
        loop.call_soon_threadsafe(end)
    except RuntimeError:
        pgconn.finish()  # the loop is closed
