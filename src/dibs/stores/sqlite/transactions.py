"""What is done with an open file: a batch in one transaction or not at all, a sweep, a look.

Nothing here waits: where somebody else is writing, SQLite's own error is raised and nothing was done.
"""

import sqlite3
from collections.abc import Sequence
from math import inf

from dibs.core.book import Entry
from dibs.core.ledger import Batch, apply
from dibs.errors import BackendUnavailable
from dibs.model import Command, Failed, Inspect, Reply, Wakeup
from dibs.stores.sqlite import schema
from dibs.stores.sqlite.rows import OtherRows, RowBook, no_rows
from dibs.stores.sqlite.schema import (
    READ_META,
    READ_META_AND_KEY,
    SWAP_KEY,
    WRITE_KEY,
    Execute,
    Row,
)
from dibs.stores.sqlite.site import Identity, Site
from dibs.stores.sqlite.trouble import is_of_one_command, is_of_the_caller

type Outcome = tuple[list[Reply], list[Wakeup]]

MAX_BOOKS = 1024
"""So many books of simple keys are remembered from one transaction to the next."""

LOOK = 1.0
"""How often a connection looks whether its file is still the one at the path, in seconds."""


class Transactions:
    """One open connection's, with the books that it remembers between them."""

    def __init__(self, site: Site, cursor: sqlite3.Cursor, identity: Identity, floor: int) -> None:
        self._site = site
        self._cursor = cursor
        self._execute: Execute = cursor.execute
        self._execute_many: Execute = cursor.executemany
        self.identity = identity
        self._floor = floor
        self._look_at = -inf
        self._version = -1
        self._books: dict[bytes, RowBook] = {}

    def forget(self) -> None:
        """Something went wrong: remember nothing of it."""
        self._books.clear()

    def apply(self, commands: Sequence[Command]) -> Outcome:
        """A reply for each command, and the pushes that come of them."""
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
            outcome = self._together(commands)
        except Exception as error:
            if not is_of_one_command(error):
                raise
            self.forget()
            if self._cursor.connection.in_transaction:
                execute("ROLLBACK")
            execute("BEGIN IMMEDIATE")
            outcome = self._one_by_one(commands)
        execute("COMMIT")
        return outcome

    def _apply_alone(self, command: Command) -> Outcome | None:
        """One statement for one command, if the row that we remember is still the one in the file.

        Whatever others do to a key changes the version of its row, so what was decided on our copy of
        it stands if that is unchanged. `now` may be a little old by then, which shortens a lease and
        never lengthens it. None: it takes a transaction.
        """
        book = self._books.pop(command.key, None)
        if book is None:
            return None
        clock = self._site.clock
        now = clock.now()
        if now >= self._look_at:
            self._look_again(now)
        book.execute = no_rows
        try:
            reply, pushes = apply(book, command, now, clock.stamp())
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
        return [reply], pushes

    def _together(self, commands: Sequence[Command]) -> Outcome:
        """The usual way, in which nothing goes wrong."""
        now, stamp = self._begin(commands[0].key if commands else None)
        batch = Batch()
        books = self._books
        replies: list[Reply] = []
        pushes: list[Wakeup] = []
        used: dict[bytes, RowBook] = {}
        for command in commands:
            key = command.key
            book = books.get(key)
            if book is None:
                book = books[key] = RowBook.read(self._execute, key, self._floor)
            book.execute = self._execute
            used[key] = book
            reply, wakeups = apply(book, command, now, stamp, batch)
            replies.append(reply)
            if wakeups:
                pushes += wakeups
        rows: list[Row] = []
        for key, book in used.items():
            row = book.flush()
            if row is not None:
                rows.append(row)
            if not book.simple:
                del books[key]  # what lies in other rows is read anew
        if len(rows) == 1:
            self._execute(WRITE_KEY, rows[0])
        elif rows:
            self._execute_many(WRITE_KEY, rows)
        return replies, pushes

    def _begin(self, key: bytes | None = None) -> tuple[float, int]:
        """In a transaction: see what others have changed, and what time it is.

        The number that SQLite gives for the state of the file is unchanged while nobody but this
        connection has written. So are then the format, the boot, and the books that we remember.
        """
        version = self._execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._books) > MAX_BOOKS:
            self._books.clear()
            self._read_anew(version, key)
        clock = self._site.clock
        now = clock.now()
        if now >= self._look_at:
            self._look_again(now)
        return now, clock.stamp()

    def _read_anew(self, version: int, key: bytes | None) -> None:
        """Is it still our format and our boot? With that, the book of a key that is wanted."""
        path = self._site.path
        try:
            row = self._execute(READ_META_AND_KEY, (key,)).fetchone()
        except sqlite3.OperationalError:
            schema.check_meta(
                self._execute(READ_META).fetchone(), path
            )  # another format has other tables
            raise
        boot, self._floor = schema.check_meta(row, path)
        if boot != self._site.boot:
            raise schema.two_boots(path)
        self._version = version
        if key is not None:
            found = None if row[3] is None else row[3:]
            self._books[key] = RowBook(self._execute, key, self._floor, found)

    def _look_again(self, now: float) -> None:
        """Is our file still the one that others find, and still of our format and boot?"""
        if self._site.identity() != self.identity:
            raise replaced(self._site)
        boot, _ = schema.check_meta(self._execute(READ_META).fetchone(), self._site.path)
        if boot != self._site.boot:
            raise schema.two_boots(self._site.path)
        self._look_at = now + LOOK

    def _one_by_one(self, commands: Sequence[Command]) -> Outcome:
        """The careful way, for a batch in which something is wrong: it costs nobody else a lease."""
        now, stamp = self._begin()
        replies: list[Reply] = []
        pushes: list[Wakeup] = []
        for command in commands:
            self._execute("SAVEPOINT command")
            try:
                book = RowBook.read(self._execute, command.key, self._floor)
                reply, wakeups = apply(book, command, now, stamp)
                self._flush(book)
            except Exception as error:
                if not is_of_one_command(error):
                    raise
                self._execute("ROLLBACK TO command")
                reply, wakeups = _failed(error), []
            self._execute("RELEASE command")
            replies.append(reply)
            pushes += wakeups
        return replies, pushes

    def _flush(self, book: RowBook) -> None:
        row = book.flush()
        if row is not None:
            self._execute(WRITE_KEY, row)

    def sweep(self, keys: Sequence[bytes]) -> list[Wakeup]:
        """Settle keys, and throw out those that are idle; tokens still rise, as new keys begin above."""
        self._execute("BEGIN IMMEDIATE")
        now, stamp = self._begin()
        self._books.clear()
        pushes: list[Wakeup] = []
        for key in keys:
            book = RowBook.read(self._execute, key, self._floor)
            pushes += apply(book, Inspect(key), now, stamp)[1]  # which settles it
            self._flush(book)
            if book.idle:
                self._floor = max(self._floor, book.last)
                self._execute("DELETE FROM lease_keys WHERE key = ?", (key,))
        self._execute("UPDATE lease_meta SET floor = ?", (self._floor,))
        self._execute("COMMIT")
        return pushes

    def peek(self, which: tuple[bytes, str]) -> tuple[Entry | None, str | None]:
        """What an id has, and the id of the first place in the queue."""
        self._execute("BEGIN")
        book = RowBook.read(self._execute, which[0], self._floor)
        entry, head = book.get(which[1]), book.first()
        self._execute("COMMIT")
        return entry, None if head is None else head.id


def _failed(error: Exception) -> Failed:
    if is_of_the_caller(error):
        return Failed("invalid", f"no row can hold this: {error}")
    return Failed("corrupt", f"what lies in the store for this key can't be used: {error!r}")


def replaced(site: Site) -> BackendUnavailable:
    """The file that is open is no longer the one that others would open."""
    return BackendUnavailable(
        f"{site.path} (or the -shm file beside it) was deleted or replaced while it was in "
        "use: the leases in it are void; don't let a cleaner of temporary files reach it"
    )
