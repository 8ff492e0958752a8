"""One connection to the file, and how it applies a batch: in one transaction, or not at all.

Nothing here waits: where somebody else is writing, `Busy` is raised and nothing was done. SQLite's own
waiting isn't used, as it sleeps for up to a quarter of a second while the file is long free again.
"""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from leasehold.backends.sqlite import file, forks, schema
from leasehold.backends.sqlite.rows import RowBook
from leasehold.backends.sqlite.schema import Execute
from leasehold.backends.sqlite.site import Identity, Site
from leasehold.backends.sqlite.statements import READ_ANEW, WRITE_KEY
from leasehold.backends.sqlite.trouble import (
    Busy,
    explain,
    is_busy,
    is_of_one_command,
    is_of_the_caller,
)
from leasehold.backends.sqlite.values import Row
from leasehold.core.book import Entry
from leasehold.core.ledger import apply
from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Command, Failed, Inspect, Reply, Wakeup

type Outcome = tuple[list[Reply], list[Wakeup]]

MAX_BOOKS = 1024
"""So many books of simple keys are remembered from one transaction to the next."""

_leaked: list[object] = []

LOOK = 1.0
"""How often a connection looks whether its file is still the one at the path, in seconds."""


class Connection:
    """A connection to the file. Whoever uses it holds `lock`, so that a fork finds it at rest."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.lock = threading.Lock()
        self.work = 0
        """Commands applied since the last upkeep."""
        self.secret = b""
        """What datagrams of this file's users are signed with."""
        self._db: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._execute: Execute = _closed
        self._execute_many: Execute = _closed
        self._identity: Identity | None = None
        self._look_at = -inf
        self._floor = 0
        self._version = -1
        self._books: dict[bytes, RowBook] = {}
        forks.watch(self)

    @property
    def ready(self) -> bool:
        """Connected, so that a batch can be applied at once."""
        return self._db is not None

    # -- a life -------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the file, making what is missing. Raises `Busy` while somebody else makes it."""
        if self._db is not None:
            return
        forks.refuse_if_torn(self.site)
        file.prepare(self.site.path, unsafe_network_fs=self.site.unsafe_network_fs)
        try:
            self._connect()
        except sqlite3.Error as error:
            self.close()
            if is_busy(error):
                raise Busy from None
            raise explain(error, self.site.path) from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        opened = Path(self.site.path).stat()
        db = self._db = sqlite3.connect(
            self.site.path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        cursor = self._cursor = db.cursor()
        execute = cursor.execute
        execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise BackendUnavailable(
                f"{self.site.path} can't be shared between processes: its file system or its VFS "
                f"allows SQLite no write-ahead log (it stays in mode {mode})"
            )
        execute("PRAGMA synchronous = NORMAL")  # see docs/adr/0003
        execute("PRAGMA wal_autocheckpoint = 0")  # see upkeep.py
        self._execute = execute
        self._execute_many = cursor.executemany
        self._settle(execute)
        if self._identity is None or self._identity[:2] != (opened.st_dev, opened.st_ino):
            raise self._replaced()

    def _settle(self, execute: Execute) -> None:
        """Find or make the tables, and see to it that their times are of our boot."""
        site = self.site
        execute("BEGIN IMMEDIATE")
        self._identity = site.identity()  # the shared memory is there from now on
        schema.create(execute, site.boot)
        boot, self._floor = schema.read_meta(execute, site.path)
        if boot != site.boot:
            if site.settled:
                raise schema.two_boots(site.path)
            schema.adopt(execute, site.boot, site.clock.now())
        self.secret = execute("SELECT secret FROM lease_meta").fetchone()[0]
        execute("COMMIT")
        site.settled = True

    def close(self) -> None:
        """Disconnect; a transaction that was under way is rolled back."""
        db, self._db = self._db, None
        cursor, self._cursor = self._cursor, None
        self._execute = self._execute_many = _closed
        self._version = -1
        self._books.clear()
        if cursor is not None:
            cursor.close()  # a statement that is still alive would keep the file open
        if db is not None:
            db.close()

    def unlock_after_interrupt(self) -> None:
        """For the one thread that uses it: Ctrl-C at the wrong moment leaves the lock taken for ever."""
        if self.lock.acquire(timeout=0.1):
            self.lock.release()
        else:
            self.lock = threading.Lock()

    @property
    def at_rest(self) -> bool:
        """No transaction is under way."""
        return self._db is None or not self._db.in_transaction

    def leak(self) -> None:
        """Forget what was inherited in the middle of something; it is never closed: see `forks`."""
        _leaked.append((self._db, self._cursor, dict(self._books)))
        self._db = self._cursor = None
        self.close()

    def close_in_child(self) -> None:
        """Let go of what was inherited at rest, without touching the file: see `forks`."""
        if self._db is not None:
            self._db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        self.close()

    # -- batches ------------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch in one transaction. Raises `Busy`, or what the port says."""
        return self._guarded(self._apply, commands)

    def sweep(self, keys: Sequence[bytes]) -> list[Wakeup]:
        """Settle keys, and throw out those that are idle; tokens still rise, as new keys begin above."""
        return self._guarded(self._sweep, keys)

    def read(self, statement: str, *values: object) -> list[Row]:
        """The rows of a query outside of any transaction."""
        return self._guarded(self._read, (statement, *values))

    def peek(self, key: bytes, entry_id: str) -> tuple[Entry | None, str | None]:
        """What an id has, and the id of the first place in the queue."""
        return self._guarded(self._peek, (key, entry_id))

    def _guarded[T, R](self, action: Callable[[T], R], what: T) -> R:
        """Connect if need be; after an error, leave nothing half done and begin afresh next time."""
        try:
            if self._db is None:
                self.connect()
            return action(what)
        except sqlite3.Error as error:
            self._give_up()
            if is_busy(error):
                raise Busy from None
            self.close()
            raise explain(error, self.site.path) from error
        except (LeaseholdError, OSError, MemoryError):
            self._give_up()
            self.close()
            raise
        except BaseException:
            self._give_up()
            raise

    def _apply(self, commands: Sequence[Command]) -> Outcome:
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        try:
            outcome = self._together(commands)
        except Exception as error:
            if not is_of_one_command(error):
                raise
            self._give_up()
            execute("BEGIN IMMEDIATE")
            outcome = self._one_by_one(commands)
        execute("COMMIT")
        self.work += len(commands)
        return outcome

    def _together(self, commands: Sequence[Command]) -> Outcome:
        """The usual way, in which nothing goes wrong."""
        now, stamp = self._begin(commands[0].key if commands else None)
        books = self._books
        replies: list[Reply] = []
        pushes: list[Wakeup] = []
        used: dict[bytes, RowBook] = {}
        for command in commands:
            key = command.key
            book = books.get(key)
            if book is None:
                book = books[key] = RowBook.read(self._execute, key, self._floor)
            used[key] = book
            reply, wakeups = apply(book, command, now, stamp)
            replies.append(reply)
            if wakeups:
                pushes += wakeups
        rows = [row for book in used.values() if (row := book.flush()) is not None]
        if len(rows) == 1:
            self._execute(WRITE_KEY, rows[0])
        elif rows:
            self._execute_many(WRITE_KEY, rows)
        for key, book in used.items():
            if not book.simple:
                del books[key]  # what lies in other rows is read anew
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
        clock = self.site.clock
        now = clock.now()
        if now >= self._look_at:
            self._look_again(now)
        return now, clock.stamp()

    def _read_anew(self, version: int, key: bytes | None) -> None:
        """Is it still our format and our boot? With that, the book of a key that is wanted."""
        path = self.site.path
        try:
            row = self._execute(READ_ANEW, (key,)).fetchone()
        except sqlite3.OperationalError:
            schema.read_meta(self._execute, path)  # another format has other tables, and says so
            raise
        boot, self._floor = schema.check_meta(row, path)
        if boot != self.site.boot:
            raise schema.two_boots(path)
        self._version = version
        if key is not None:
            found = None if row[3] is None else row[3:]
            self._books[key] = RowBook(self._execute, key, self._floor, found)

    def _look_again(self, now: float) -> None:
        """Is our file still the one that others find?"""
        if self.site.identity() != self._identity:
            raise self._replaced()
        self._look_at = now + LOOK

    def _replaced(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self.site.path} (or the -shm file beside it) was deleted or replaced while it was in "
            "use: the leases in it are void; don't let a cleaner of temporary files reach it"
        )

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

    def _give_up(self) -> None:
        """Leave no transaction behind, and remember nothing of it."""
        self._books.clear()
        db = self._db
        if db is not None and db.in_transaction:
            try:
                db.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()  # which rolls back, too

    # -- upkeep -------------------------------------------------------------------------------------

    def _sweep(self, keys: Sequence[bytes]) -> list[Wakeup]:
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

    def _peek(self, which: tuple[bytes, str]) -> tuple[Entry | None, str | None]:
        self._execute("BEGIN")
        book = RowBook.read(self._execute, which[0], self._floor)
        entry, head = book.get(which[1]), book.first()
        self._execute("COMMIT")
        return entry, None if head is None else head.id

    def _read(self, query: tuple[object, ...]) -> list[Row]:
        return self._execute(query[0], query[1:]).fetchall()


def _failed(error: Exception) -> Failed:
    if is_of_the_caller(error):
        return Failed("invalid", f"no row can hold this: {error}")
    return Failed("corrupt", f"what lies in the store for this key can't be used: {error!r}")


def _closed(*_: object) -> sqlite3.Cursor:
    raise BackendUnavailable("this connection is closed")
