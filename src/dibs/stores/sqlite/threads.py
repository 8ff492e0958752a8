"""A thread's connection: everything is done in the caller's own thread."""

import time
from collections.abc import Sequence
from functools import partial

from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.stores.bell import Bell
from dibs.stores.sqlite import maintenance
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.notify import Notifier


class BlockingSqliteConnection:
    """See `BlockingConnection`.

    A caller that is interrupted (Ctrl-C) leaves no transaction behind: the next use or `close` rolls it
    back.
    """

    def __init__(self, file: StoreFile) -> None:
        self._connection = Connection(file)
        self._notifier = Notifier()
        self._bell: Bell | None = None
        self._own: list[Notification] = []
        """Notifications for ourselves that our own commands caused."""

    @property
    def inbox(self) -> str:
        return self._notifier.inbox

    def open(self, timeout: float) -> None:
        self._connection.retry(self._connection.connect, timeout)

    def close(self) -> None:
        connection = self._connection
        connection.unlock_after_interrupt()
        if connection.ready and maintenance.is_due_at_close(connection):
            self._send(maintenance.maintain(connection))
        with connection.lock:
            connection.close()
        self._notifier.close()
        self._close_bell()

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        connection = self._connection
        replies, notifications = connection.retry(partial(connection.apply, commands), timeout)
        self._send(notifications)
        if connection.work >= maintenance.EVERY:
            self._send(maintenance.maintain(connection))
        return replies

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return maintenance.scan(self._connection, prefix, cursor, limit, self._send)

    def examine(self) -> Sequence[Finding]:
        return maintenance.examine(self._connection)

    # -- notifications ------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._bell is None:
            self._bell = Bell()
        self._notifier.listen()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived, self._own = self._own, []
            arrived += self._notifier.receive()
            left = None if end is None else end - time.monotonic()
            if arrived or self._bell is None or (left is not None and left <= 0):
                return arrived
            socket = self._notifier.socket
            if self._bell.wait(left, *(() if socket is None else (socket,))):
                return ()

    def wake(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    def _send(self, notifications: Sequence[Notification]) -> None:
        if notifications:
            self._own += self._notifier.send(notifications)

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    def after_fork(self) -> None:
        """`connection.py` sees to the connection."""
        self._notifier.close(in_child=True)
        self._close_bell()
        self._own = []
