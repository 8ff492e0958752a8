"""An event loop's connection: in place while nobody else writes, else in a thread of its own."""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from dibs.errors import DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.stores.aio import resolve, submit_in_task
from dibs.stores.port import Deliver, Done, GiveUp, as_dibs
from dibs.stores.sqlite import maintenance
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.errors import Busy
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.notify import Notifier
from dibs.stores.sqlite.transactions import Outcome

SHORT_WAIT = 0.00005
"""Seconds that an event loop waits in place for another writer. Most have finished by then."""

IN_PLACE = 64
"""Commands in a batch that is applied on the loop's own thread, at most."""

type Job = Callable[[], object]
type Wanted = Callable[[], bool]
type Take = Callable[[Sequence[Notification]], None]


class AsyncSqliteConnection:
    """See `AsyncConnection`.

    Giving a batch up interrupts nothing: it is done or not done as a whole, and its answer is dropped.
    """

    parallel = 1

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._connection = Connection(file)
        self._in_threads = 0
        """Calls that wait for the worker."""
        self._deliver: Deliver | None = None
        self._maintaining: threading.Thread | None = None
        self._have_worker()

    def _have_worker(self) -> None:
        self._worker = Worker(self._connection, weakref.WeakMethod(self._take))
        self._finalizer = weakref.finalize(self, self._worker.end)
        self._finalizer.atexit = False

    @property
    def inbox(self) -> str:
        return self._worker.notifier.inbox

    async def open(self) -> None:
        connect = self._connection.connect
        await self._in_thread(lambda wanted: self._connection.retry(connect, wanted=wanted))

    async def close(self) -> None:
        worker = self._worker
        if worker.is_running or self._connection.ready:
            await self._in_thread(lambda _: worker.close_connection(maintain=True))
        worker.stop()
        worker.stop_listening()
        self._deliver = None

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._worker.listen()

    def _take(self, notifications: Sequence[Notification]) -> None:
        if notifications and self._deliver is not None:
            self._deliver(notifications)

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        result: Sequence[Reply] | DibsError
        try:
            outcome = self._apply_in_place(commands)
        except Exception as error:  # noqa: BLE001  # whatever it was, the callers get it
            result = as_dibs(error)
        else:
            if outcome is None:
                return submit_in_task(self._apply_in_thread(commands), done)
            result, notifications = outcome
            if notifications:
                self._take(self._worker.notifier.send(notifications))
            self._maintain_if_due()
        done(result)
        return _nothing

    def _apply_in_place(self, commands: Sequence[Command]) -> Outcome | None:
        """Apply a batch now. None if another connection is writing, or it would take too long."""
        connection = self._connection
        if self._in_threads or not connection.ready or len(commands) > IN_PLACE:
            return None
        if not connection.lock.acquire(blocking=False):
            return None
        try:
            try:
                return connection.apply(commands)
            except Busy:
                time.sleep(SHORT_WAIT)
                return connection.apply(commands)
        except Busy:
            return None
        finally:
            connection.lock.release()

    async def _apply_in_thread(self, commands: Sequence[Command]) -> Sequence[Reply]:
        try:
            return await self._in_thread(partial(self._worker.apply, commands))
        finally:
            self._maintain_if_due()

    def _in_thread[R](self, action: Callable[[Wanted], R]) -> asyncio.Future[R]:
        """Have the worker do something that may wait. It can ask whether the result is still wanted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._in_threads += 1
        future.add_done_callback(self._ended)
        self._worker.submit(partial(_do, action, loop, future))
        return future

    def _ended(self, _: object) -> None:
        self._in_threads -= 1

    def _maintain_if_due(self) -> None:
        """Run maintenance in a thread and on a connection of its own, beside the commands."""
        if self._connection.work < maintenance.EVERY:
            return
        self._connection.work = 0
        if self._maintaining is None or not self._maintaining.is_alive():
            self._maintaining = threading.Thread(
                target=_maintain,
                args=(self._file, self._worker.send),
                name="dibs-maintenance",
                daemon=True,
            )
            self._maintaining.start()

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        connection, send = self._connection, self._worker.send
        return await self._in_thread(
            lambda _: maintenance.scan(connection, prefix, cursor, limit, send)
        )

    async def examine(self) -> Sequence[Finding]:
        connection = self._connection
        return await self._in_thread(lambda _: maintenance.examine(connection))

    def after_fork(self) -> None:
        """The loop, its thread and its socket belong to the parent; `connection.py` does the rest."""
        self._finalizer.detach()
        self._worker.notifier.close(in_child=True)
        self._in_threads = 0
        self._deliver = self._maintaining = None
        self._have_worker()


class Worker:
    """The thread in which an event loop's commands wait for the file, and its notifications.

    The thread is made when it is first needed. It keeps no `AsyncSqliteConnection` alive, so that one that
    is dropped without `close` ends it.
    """

    def __init__(self, connection: Connection, take: "weakref.WeakMethod[Take]") -> None:
        self.notifier: Notifier = Notifier()
        self._connection = connection
        self._take = take
        """Takes notifications for us, in the loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- jobs ---------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """It has a thread, which may have something to do."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Have the thread do a job, after all others."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._jobs,), name="dibs-sqlite", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its jobs; never waits. Another job starts another thread."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)
            self._jobs = SimpleQueue()

    def end(self) -> None:
        """Close everything once the jobs are done."""
        if self._thread is None:
            self._connection.close()
        else:
            self.submit(self.close_connection)
            self.stop()
        self.notifier.close()

    def apply(self, commands: Sequence[Command], wanted: Wanted) -> list[Reply]:
        """Apply a batch, and send the notifications even if nobody waits for the replies any more."""
        connection = self._connection
        replies, notifications = connection.retry(
            partial(connection.apply, commands), wanted=wanted
        )
        if notifications:
            self.send(notifications)
        return replies

    def close_connection(self, *, maintain: bool = False) -> None:
        """Disconnect from the file."""
        connection = self._connection
        if maintain and connection.ready and maintenance.is_due_at_close(connection):
            self.send(maintenance.maintain(connection))
        with connection.lock:
            connection.close()

    # -- notifications ------------------------------------------------------------------------------

    def send(self, notifications: Sequence[Notification]) -> None:
        """Send notifications to their inboxes, and deliver our own. For any thread but the loop's."""
        own = self.notifier.send(notifications)
        if own and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
                self._loop.call_soon_threadsafe(self._deliver, own)

    def listen(self) -> None:
        """Receive our notifications in the running loop, if that is possible here."""
        if not self.notifier.inbox and self.notifier.listen():
            assert self.notifier.socket is not None
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self.notifier.socket, self._receive)

    def _receive(self) -> None:
        # One datagram at a time: the loop comes back for more, and whom it wakes need not wait for them.
        self._deliver(self.notifier.receive(1))

    def _deliver(self, notifications: Sequence[Notification]) -> None:
        take = self._take()
        if take is not None:
            take(notifications)

    def stop_listening(self) -> None:
        """Give the inbox up."""
        loop, reading = self._loop, self.notifier.socket
        if loop is not None and reading is not None and not loop.is_closed():
            loop.remove_reader(reading)
        self.notifier.close()
        self._loop = None


def _run(jobs: SimpleQueue[Job | None]) -> None:
    while _next(jobs):
        pass  # and while it waits for a job, it keeps no other alive


def _next(jobs: SimpleQueue[Job | None]) -> bool:
    job = jobs.get()
    if job is not None:
        job()
    return job is not None


def _do[R](
    action: Callable[[Wanted], R],
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[R],
) -> None:
    """Do a job in the worker's thread, and bring its result to the loop."""
    result: R | Exception
    try:
        result = action(lambda: not future.done())
    except Exception as error:  # noqa: BLE001  # its caller gets it
        result = error
    with suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
        loop.call_soon_threadsafe(resolve, future, result)


def _maintain(file: StoreFile, send: Callable[[Sequence[Notification]], None]) -> None:
    connection = Connection(file)
    try:
        send(maintenance.maintain(connection))
    finally:
        with connection.lock:
            connection.close()


def _nothing() -> None:
    """There is nothing to give up."""
