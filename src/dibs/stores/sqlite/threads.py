"""A thread's connection: everything is done in the caller's own thread."""

from collections.abc import Sequence
from functools import partial

from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.stores.sqlite import maintenance
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.notify import Notifier
from dibs.stores.waker import Incoming


class BlockingSqliteConnection:
    """See `BlockingConnection`.

    A caller that is interrupted (Ctrl-C) leaves no transaction behind: the next use or `close` rolls it
    back.
    """

    def __init__(self, file: StoreFile) -> None:
        self._connection = Connection(file)
        self._notifier = Notifier()
        self._incoming = Incoming(self._notifier.receive, self._notifier.sockets)

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
        self._incoming.close()

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
        self._incoming.open()
        self._notifier.listen()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        return self._incoming.wait(timeout)

    def wake(self) -> None:
        self._incoming.wake()

    def _send(self, notifications: Sequence[Notification]) -> None:
        if notifications:
            self._incoming.add(self._notifier.send(notifications))

    def after_fork(self) -> None:
        """`connection.py` drops the connection."""
        self._notifier.close(in_child=True)
        self._incoming.close()
