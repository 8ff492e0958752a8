"""What is done with an open file: apply a batch in one transaction or not at all, and sweep.

Nothing here waits. Where another connection is writing, SQLite's own error is raised and nothing was done.
"""

import sqlite3
from collections.abc import Sequence
from math import inf

from dibs.core.ledger import StepBudget, apply
from dibs.errors import BackendUnavailable
from dibs.model import Command, Failed, Inspect, Notification, Reply
from dibs.stores.sqlite import schema
from dibs.stores.sqlite.errors import is_of_one_command, is_of_the_caller
from dibs.stores.sqlite.file import Identity, StoreFile
from dibs.stores.sqlite.rows import OtherRows, RowBook, no_rows
from dibs.stores.sqlite.schema import (
    READ_KEY,
    READ_META,
    READ_META_AND_KEY,
    SWAP_KEY,
    WRITE_KEY,
    Execute,
    Row,
)

type Outcome = tuple[list[Reply], list[Notification]]

MAX_BOOKS = 1024
"""Books of simple keys that are remembered from one transaction to the next, at most."""

CHECK_EVERY = 1.0
"""Seconds between two checks that the file is still the one at the path."""


class Transactions:
    """The transactions of one open connection, and the books that it remembers between them."""

    def __init__(
        self, file: StoreFile, cursor: sqlite3.Cursor, identity: Identity, floor: int
    ) -> None:
        self._file = file
        self._cursor = cursor
        self._execute: Execute = cursor.execute
        self.identity: Identity = identity
        self._floor = floor
        self._check_at = -inf
        self._version = -1
        self._books: dict[bytes, RowBook] = {}

    def forget(self) -> None:
        """Forget all books, because something went wrong."""
        self._books.clear()

    def read(self, query: tuple[str, Row]) -> list[Row]:
        """The rows of a statement with these values, outside of any transaction."""
        return self._execute(*query).fetchall()

    def apply(self, commands: Sequence[Command]) -> Outcome:
        """A reply for each command, and the notifications that they cause."""
        if self._cursor.connection.in_transaction:  # left open by two interrupts, one in the other
            self.forget()
            self._execute("ROLLBACK")
        if len(commands) == 1:
            alone = self._apply_alone(commands[0])
            if alone is not None:
                return alone
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        try:
            outcome = self._apply_together(commands)
        except Exception as error:
            if not is_of_one_command(error):
                raise
            self.forget()
            if self._cursor.connection.in_transaction:
                execute("ROLLBACK")
            execute("BEGIN IMMEDIATE")
            outcome = self._apply_one_by_one(commands)
        execute("COMMIT")
        return outcome

    def _apply_alone(self, command: Command) -> Outcome | None:
        """Apply one command by one statement, if the remembered row is still the one in the file.

        Whatever others do to a key changes the version of its row. So a decision on our copy is valid if
        the version is unchanged. `now` may be a little old by then, which shortens a lease and never
        lengthens it. None: it takes a transaction.
        """
        book = self._books.pop(command.key, None)
        if book is None:
            return None
        clock = self._file.clock
        now = clock.now()
        if now >= self._check_at:
            self._check_file(now)
        book.execute = no_rows
        try:
            reply, notifications = apply(book, command, now, clock.stamp())
            row = book.swap()
            if row is None or self._execute(SWAP_KEY, row).rowcount != 1:
                return None
        except OtherRows:
            return None
        except Exception as error:
            if is_of_one_command(error):
                return None
            raise
        self._books[command.key] = book
        return [reply], notifications

    def _apply_together(self, commands: Sequence[Command]) -> Outcome:
        """The usual way, in which nothing goes wrong. Commands on the same key share its book."""
        now, stamp = self._begin(commands[0].key if commands else None)
        batch = StepBudget()
        books = self._books
        replies: list[Reply] = []
        notifications: list[Notification] = []
        used: dict[bytes, RowBook] = {}
        for command in commands:
            key = command.key
            book = books.get(key)
            if book is None:
                row = self._execute(READ_KEY, (key,)).fetchone()
                book = books[key] = RowBook(self._execute, key, self._floor, row)
            book.execute = self._execute
            used[key] = book
            reply, more = apply(book, command, now, stamp, batch)
            replies.append(reply)
            if more:
                notifications += more
        changed = [row for row in [book.flush() for book in used.values()] if row is not None]
        if changed:
            self._cursor.executemany(WRITE_KEY, changed)
        for key, book in used.items():
            if not book.simple:
                del books[key]  # what lies in other rows is read anew
        return replies, notifications

    def _apply_one_by_one(self, commands: Sequence[Command]) -> Outcome:
        """The careful way, for a batch with a bad command in it: it costs nobody else a lease."""
        replies: list[Reply] = []
        notifications: list[Notification] = []
        for command in commands:
            self._execute("SAVEPOINT command")
            try:
                [reply], more = self._apply_together([command])
            except Exception as error:
                if not is_of_one_command(error):
                    raise
                self.forget()
                self._execute("ROLLBACK TO command")
                reply, more = _failed(error), []
            self._execute("RELEASE command")
            replies.append(reply)
            notifications += more
        return replies, notifications

    def sweep(self, keys: Sequence[bytes]) -> list[Notification]:
        """Let time take effect on keys, and delete those that are idle.

        Tokens still rise, because new keys begin above `floor`.
        """
        self._execute("BEGIN IMMEDIATE")
        notifications: list[Notification] = []
        for key in keys:
            notifications += self._apply_together([Inspect(key)])[1]
            book = self._books.pop(key, None)
            if book is not None and book.idle:
                self._floor = max(self._floor, book.last)
                self._execute("DELETE FROM lease_keys WHERE key = ?", (key,))
        self._execute("UPDATE lease_meta SET floor = ?", (self._floor,))
        self._execute("COMMIT")
        return notifications

    def _begin(self, key: bytes | None) -> tuple[float, int]:
        """In a transaction: notice what others have changed, and return the time and the stamp.

        SQLite's `data_version` is unchanged while only this connection has written. Then the format, the
        boot and the remembered books are unchanged too. Otherwise the book of `key` is read along.
        """
        version = self._execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._books) > MAX_BOOKS:
            self._books.clear()
            try:
                row = self._execute(READ_META_AND_KEY, (key,)).fetchone()
            except sqlite3.OperationalError:
                self._check_meta()  # another format has other tables
                raise
            self._floor = self._check(row)
            self._version = version
            if key is not None:
                found = None if row[3] is None else row[3:]
                self._books[key] = RowBook(self._execute, key, self._floor, found)
        clock = self._file.clock
        now = clock.now()
        if now >= self._check_at:
            self._check_file(now)
        return now, clock.stamp()

    def _check_file(self, now: float) -> None:
        """Is the open file still the one at the path, and still of our format and boot?"""
        if self._file.identity() != self.identity:
            raise replaced(self._file.path)
        self._check_meta()
        self._check_at = now + CHECK_EVERY

    def _check_meta(self) -> None:
        self._check(self._execute(READ_META).fetchone())

    def _check(self, meta: Row | None) -> int:
        """Raise an error unless format and boot are ours; return the highest token of deleted keys."""
        boot, floor = schema.check_meta(meta, self._file.path)
        if boot != self._file.boot:
            raise schema.two_boots(self._file.path)
        return floor


def _failed(error: Exception) -> Failed:
    if is_of_the_caller(error):
        return Failed("invalid", f"no row can hold this: {error}")
    return Failed("corrupt", f"what lies in the store for this key can't be used: {error!r}")


def replaced(path: str) -> BackendUnavailable:
    """The file that is open is no longer the one that others would open."""
    return BackendUnavailable(
        f"{path} (or the -shm file beside it) was deleted or replaced while it was in "
        "use: the leases in it are void; don't let a cleaner of temporary files reach it"
    )
