"""The backend of a thread: everything is done in the caller's own thread, and nothing suspends."""

import time
from collections.abc import Sequence

from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.bell import Bell
from dibs.stores.sqlite import maintenance
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.errors import Busy
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.notify import Notifier


class BlockingBackend:
    """A connection for one thread at a time; its coroutines end without ever suspending.

    A caller that is interrupted (Ctrl-C) leaves no transaction behind: at the next use, or by `close`,
    it is rolled back.
    """

    def __init__(self, file: StoreFile) -> None:
        self._connection = Connection(file)
        self._notifier = Notifier()
        self._bell: Bell | None = None
        self._arrived: list[Wakeup] = []

    @property
    def inbox(self) -> str:
        return self._notifier.inbox

    async def open(self, *, listen: bool = True) -> None:
        self._connection.retry(self._connection.connect)
        if listen and self._bell is None:
            self._bell = Bell()
            self._notifier.listen()

    async def close(self) -> None:
        connection = self._connection
        connection.unlock_after_interrupt()
        if connection.ready and maintenance.is_due_at_close(connection):
            self._deliver(maintenance.maintain(connection))
        with connection.lock:
            connection.close()
        self._notifier.close()
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        connection = self._connection
        if not connection.ready or not connection.lock.acquire(blocking=False):
            return None
        try:
            replies, wakeups = connection.apply(commands)
        except Busy:
            return None
        finally:
            connection.lock.release()
        self._after(wakeups)
        return replies

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        connection = self._connection
        replies, wakeups = connection.retry(lambda: connection.apply(commands))
        self._after(wakeups)
        return replies

    def _after(self, notifications: list[Wakeup]) -> None:
        self._deliver(notifications)
        if self._connection.work >= maintenance.EVERY:
            self._deliver(maintenance.maintain(self._connection))

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return maintenance.scan(self._connection, prefix, cursor, limit, self._deliver)

    async def examine(self) -> Sequence[Finding]:
        """What to know about the file."""
        return maintenance.examine(self._connection)

    # -- notifications ------------------------------------------------------------------------------

    def _deliver(self, notifications: Sequence[Wakeup]) -> None:
        if notifications:
            self._arrived += self._notifier.send(notifications)

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived, self._arrived = self._arrived, []
            arrived += self._notifier.receive()
            left = None if end is None else end - time.monotonic()
            bell = self._bell
            if arrived or bell is None or (left is not None and left <= 0):
                return arrived
            if bell.wait(left, *([self._notifier.socket] if self._notifier.socket else ())):
                return ()

    def nudge(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    def after_fork(self) -> None:
        """`connection.py` sees to the connection."""
        self._notifier.close(in_child=True)
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self._arrived = []
