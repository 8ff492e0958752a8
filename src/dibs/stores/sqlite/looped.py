"""The backend of an event loop: in place while nobody else writes, else in a thread of its own."""

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.sqlite import maintenance
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.errors import Busy
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.notify import Notifier
from dibs.stores.sqlite.worker import Job, Worker

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class Mailbox:
    """Wakeups for one event loop. It knows no backend, so that a backend can be dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = Notifier()
        self._loop = loop
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._rung = False
        self._reader: asyncio.Future[None] | None = None
        self.deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        """Whoever takes wakeups in as they arrive, instead of waiting for them."""
        if self.notifier.listen() and self.notifier.socket is not None:
            loop.add_reader(self.notifier.socket, self._read)

    def close(self) -> None:
        """Stop listening; whoever waits is let go."""
        if self.notifier.socket is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.notifier.socket)
        self.notifier.close()
        self._ring()

    # -- what arrives -------------------------------------------------------------------------------

    def _read(self) -> None:
        # One at a time: the loop comes back for more, and whom it wakes need not wait for them.
        self.add(self.notifier.receive(1))

    def add(self, wakeups: Sequence[Wakeup]) -> None:
        """Take in what is for us. In the loop's own thread."""
        if self.deliver_to is not None:
            if wakeups:
                self.deliver_to(wakeups)
            return
        self._arrived.extend(wakeups)
        if self._arrived:
            self._wake()

    def deliver(self, wakeups: Sequence[Wakeup], *, in_loop: bool = False) -> None:
        """See that each wakeup reaches its inbox, ours or another's. Any thread."""
        own = self.notifier.send(wakeups)
        if in_loop:
            self.add(own)
        else:
            self._in_loop(lambda: self.add(own))

    def nudge(self) -> None:
        """Let whoever waits go. Any thread."""
        self._in_loop(self._ring)

    def _in_loop(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            pass  # that loop is closed, and whoever waited in it has gone

    def _ring(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- who waits for it ---------------------------------------------------------------------------

    async def wait(self, timeout: float | None) -> Sequence[Wakeup] | None:
        """What has arrived; nothing after a nudge, None at the timeout."""
        if not self._arrived and not self._rung:
            await self._until_woken(timeout)
        rung, self._rung = self._rung, False
        found = list(self._arrived)
        self._arrived.clear()
        return found if found or rung else None

    async def _until_woken(self, timeout: float | None) -> None:
        self._reader = self._loop.create_future()
        alarm = None if timeout is None else self._loop.call_later(timeout, self._wake)
        try:
            await self._reader
        finally:
            self._reader = None
            if alarm is not None:
                alarm.cancel()


A_MOMENT = 0.00005
"""How long an event loop waits in place for another writer, in seconds."""


class LoopBackend:
    """A connection for one event loop.

    A cancelled caller interrupts nothing: what it asked for is done or not done as a whole, and its
    answer is dropped.
    """

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._connection = Connection(file)
        self._worker = Worker(self._connection)
        self._mailbox: Mailbox | None = None
        self._deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        self._flying = 0
        self._tidying: threading.Thread | None = None
        self._last_rites = weakref.finalize(self, self._worker.stop_for_good)
        self._last_rites.atexit = False

    @property
    def inbox(self) -> str:
        return self._mailbox.notifier.inbox if self._mailbox is not None else ""

    async def open(self, *, listen: bool = True) -> None:
        await self._in_thread(self._connection.connect)
        if self._mailbox is None:
            mailbox = self._mailbox = Mailbox(asyncio.get_running_loop())
            mailbox.deliver_to = self._deliver_to
            self._last_rites.detach()
            self._last_rites = weakref.finalize(self, partial(_let_go, self._worker, mailbox))
            self._last_rites.atexit = False
            self._worker.deliver = mailbox.deliver

    async def close(self) -> None:
        connection = self._connection
        if self._worker.is_running:  # it may still connect for somebody who was cancelled
            await self._in_thread(_nothing)
        if connection.ready:
            if maintenance.is_due_at_close(connection):
                self._deliver(
                    await self._in_thread(lambda: maintenance.maintain(connection), alone=False)
                )
            await self._in_thread(connection.close)
        self._worker.stop()
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        connection = self._connection
        if self._flying or not connection.ready or not connection.lock.acquire(blocking=False):
            return None
        try:
            replies, wakeups = self._apply_soon(commands)
        except Busy:
            return None
        finally:
            connection.lock.release()
        if wakeups:
            self._deliver(wakeups)
        if connection.work >= maintenance.EVERY:
            self._tidy()
        return replies

    def _apply_soon(self, commands: Sequence[Command]) -> tuple[list[Reply], list[Wakeup]]:
        """Somebody who writes has mostly done so in less time than another thread would cost."""
        try:
            return self._connection.apply(commands)
        except Busy:
            time.sleep(A_MOMENT)
            return self._connection.apply(commands)

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        replies: Sequence[Reply] = await self._fly(Job(commands))
        if self._connection.work >= maintenance.EVERY:
            self._tidy()
        return replies

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        look = partial(maintenance.scan, self._connection, prefix, cursor, limit, self._worker.push)
        page: Page = await self._in_thread(look, alone=False)
        return page

    async def _in_thread(self, action: Callable[[], Any], *, alone: bool = True) -> Any:
        """Have something done that may wait; `alone`: under the connection's lock."""
        return await self._fly(Job(action, alone=alone))

    async def _fly(self, job: Job) -> Any:
        self._flying += 1
        try:
            self._worker.submit(job)
            return await job.future
        finally:
            self._flying -= 1

    def _tidy(self) -> None:
        """Upkeep in a thread and on a connection of its own: others go on beside it."""
        self._connection.work = 0
        mailbox = self._mailbox
        if mailbox is not None and (self._tidying is None or not self._tidying.is_alive()):
            self._tidying = threading.Thread(
                target=_tidy, args=(self._file, mailbox), name="dibs-upkeep", daemon=True
            )
            self._tidying.start()

    async def examine(self) -> Sequence[Finding]:
        """What to know about the file."""
        look = partial(maintenance.examine, self._connection)
        found: Sequence[Finding] = await self._in_thread(look, alone=False)
        return found

    # -- wakeups ------------------------------------------------------------------------------------

    def _deliver(self, wakeups: Sequence[Wakeup]) -> None:
        if self._mailbox is not None:
            self._mailbox.deliver(wakeups, in_loop=True)

    def deliver_to(self, take: Callable[[Sequence[Wakeup]], None]) -> None:
        """Hand pushes to `take`, in the loop, as soon as they are read; `wakeups` gives none then."""
        self._deliver_to = take
        if self._mailbox is not None:
            self._mailbox.deliver_to = take

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        if self._mailbox is None:
            return ()
        return await self._mailbox.wait(timeout) or ()

    def nudge(self) -> None:
        mailbox = self._mailbox
        if mailbox is not None:
            mailbox.nudge()

    def after_fork(self) -> None:
        """The connection is seen to by `connection.py`; the loop's own files belong to the parent."""
        self._last_rites.detach()
        if self._mailbox is not None:
            self._mailbox.notifier.close(in_child=True)
        self._mailbox = self._tidying = None
        self._flying = 0
        self._worker = Worker(self._connection)


def _nothing() -> None:
    """What has to be done first has been done."""


def _tidy(file: StoreFile, mailbox: Mailbox) -> None:
    connection = Connection(file)
    try:
        mailbox.deliver(maintenance.maintain(connection))
    finally:
        with connection.lock:
            connection.close()


def _let_go(worker: Worker, mailbox: Mailbox) -> None:
    """A backend was dropped without `close`."""
    worker.stop_for_good()
    mailbox.notifier.close()
