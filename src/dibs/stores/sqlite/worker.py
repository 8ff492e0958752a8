"""The thread in which an event loop's batches wait for the file; those that gather there go together.

The thread is made when it is first needed. It holds the connection, not the backend, so that a backend that
was dropped can end it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any

from dibs.errors import BackendUnavailable
from dibs.model import Command, Inspect, Reply, Wakeup
from dibs.stores.port import MAX_BATCH
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.errors import Busy

log = logging.getLogger("dibs")


class Job:
    """Something to do, and the future that waits for it in its event loop."""

    __slots__ = ("alone", "future", "loop", "what")

    def __init__(self, what: Sequence[Command] | Callable[[], Any], *, alone: bool = True) -> None:
        self.what = what
        self.alone = alone
        """To be done under the connection's lock; otherwise it takes that by itself."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    @property
    def commands(self) -> Sequence[Command] | None:
        """The batch that it is, if it is one."""
        return None if callable(self.what) else self.what

    def settle(self, result: object) -> None:
        """Bring the result home, wherever that is gone to."""
        try:
            self.loop.call_soon_threadsafe(self._settle, result)
        except RuntimeError:
            pass  # that loop is closed, and whoever waited in it has gone

    def _settle(self, result: object) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class Worker:
    """Does jobs for one connection, one after the other, batches merged."""

    def __init__(self, connection: Connection) -> None:
        self.deliver: Callable[[Sequence[Wakeup]], None] = _to_nobody
        self._connection = connection
        self._for_good = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """It has a thread, which may have something to do."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Have a job done; its future tells how it went."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._jobs,), name="dibs-sqlite", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end after what it has to do; never waits. Another job makes another thread."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)
            self._jobs = SimpleQueue()

    def stop_for_good(self) -> None:
        """The same, and the connection is closed at the end."""
        if self._thread is None:
            self._connection.close()
        else:
            self._for_good = True
            self.stop()

    def _run(self, jobs: SimpleQueue[Job | None]) -> None:
        while self._do_all(_gather(jobs)):
            pass  # and while it waits for more, it keeps nothing alive that it has done

    def _do_all(self, waiting: list[Job | None]) -> bool:
        """Do what has gathered; tell whether to wait for more."""
        for travels_with, group in groupby(waiting, _travels_with):
            if travels_with is not None:
                for some in _bounded(group):
                    self._do_batches(some)
                continue
            for job in group:
                if job is None:
                    self._end()
                    return False
                self._do(job)
        return True

    def _end(self) -> None:
        if self._for_good:
            with self._connection.lock:
                self._connection.close()

    def _do_batches(self, jobs: list[Job]) -> None:
        """Group commit: one transaction for all that waited."""
        commands = [command for job in jobs for command in job.commands or ()]
        connection = self._connection

        def wanted() -> bool:
            return not all(job.future.done() for job in jobs)

        try:
            replies, wakeups = connection.retry(lambda: connection.apply(commands), wanted=wanted)
        except BaseException as error:  # noqa: BLE001  # told to those who wait
            for job in jobs:
                job.settle(_for_caller(error))
            return
        self._share_out(jobs, replies)
        if wakeups:
            self.push(wakeups)

    def push(self, wakeups: Sequence[Wakeup]) -> None:
        """Have them delivered, in the worker's thread."""
        try:
            self.deliver(wakeups)
        except Exception:  # a push is a hint, and this thread is needed
            log.exception("pushes could not be sent")

    def _share_out(self, jobs: list[Job], replies: list[Reply]) -> None:
        start = 0
        for job in jobs:
            end = start + len(job.commands or ())
            job.settle(replies[start:end])
            start = end

    def _do(self, job: Job) -> None:
        assert callable(job.what)
        try:
            if job.alone:
                job.settle(self._connection.retry(job.what, wanted=lambda: not job.future.done()))
            else:
                job.settle(job.what())
        except BaseException as error:  # noqa: BLE001  # told to those who wait
            job.settle(_for_caller(error))


def _gather(jobs: SimpleQueue[Job | None]) -> list[Job | None]:
    """Wait for a job, and take all that are there."""
    waiting = [jobs.get()]
    while True:
        try:
            waiting.append(jobs.get_nowait())
        except Empty:
            return waiting


def _travels_with(job: Job | None) -> str | None:
    """What shares a transaction: reads, or all other commands; None for a job that is no batch."""
    if job is None or job.commands is None:
        return None
    return "reads" if all(type(each) is Inspect for each in job.commands) else "changes"


def _bounded(group: Iterable[Job | None]) -> Iterator[list[Job]]:
    """As many batches together as a transaction should carry."""
    some: list[Job] = []
    size = 0
    for job in group:
        assert job is not None
        more = len(job.commands or ())
        if some and size + more > MAX_BATCH:
            yield some
            some, size = [], 0
        some.append(job)
        size += more
    yield some


def _to_nobody(wakeups: Sequence[Wakeup]) -> None:
    """Before a backend is open there is no post."""


def _for_caller(error: BaseException) -> BaseException:
    return (
        BackendUnavailable("nobody waited for this any more") if isinstance(error, Busy) else error
    )
