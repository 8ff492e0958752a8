"""One connection to the file: opening and closing, retries while it is busy, and forks.

SQLite's own busy waiting is not used, because it sleeps for up to a quarter of a second while the file
is long free again. Where another connection writes, the methods raise `Busy` and have done nothing;
`retry` calls them again.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import WeakSet

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Notification
from dibs.stores.sqlite import schema
from dibs.stores.sqlite.errors import Busy, explain, is_busy, locked_out
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.schema import Row
from dibs.stores.sqlite.transactions import Outcome, Transactions, replaced

FIRST_PAUSE = 0.0001
"""Seconds before the first retry, about."""

LONGEST_PAUSE = 0.004
"""Seconds between later retries, at most: pauses grow by half each time."""


class Connection:
    """A connection to the file. Its user holds `lock` during each call, so that a fork finds it at rest."""

    def __init__(self, file: StoreFile) -> None:
        self.file: StoreFile = file
        self.lock: threading.Lock = threading.Lock()
        self.work: int = 0
        """Commands applied since the last maintenance."""
        self._db: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._transactions: Transactions | None = None
        _connections.add(self)

    @property
    def ready(self) -> bool:
        """Connected, so that a batch can be applied at once."""
        return self._db is not None

    # -- opening and closing ------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the file, making what is missing. Raises `Busy` while another process makes it."""
        if self._db is not None:
            return
        if self.file.path in _torn:
            raise BackendUnavailable(
                f"this process was forked during a transaction on {self.file.path}, so SQLite cannot be "
                "used safely on it here: start it by spawn, or exec a program after the fork"
            )
        self.file.prepare()
        try:
            self._connect()
        except sqlite3.Error as error:
            self.close()
            if is_busy(error):
                raise Busy from None
            raise explain(error, self.file.path) from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        opened = Path(self.file.path).stat()
        db = self._db = sqlite3.connect(
            self.file.path,
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
                f"{self.file.path} can't be shared between processes: its file system or its VFS "
                f"allows SQLite no write-ahead log (it stays in mode {mode})"
            )
        execute("PRAGMA synchronous = NORMAL")  # see docs/adr/0003
        execute("PRAGMA wal_autocheckpoint = 0")  # see maintenance.py
        self._transactions = transactions = self._begin_use(cursor)
        if transactions.identity[:2] != (opened.st_dev, opened.st_ino):
            raise replaced(self.file.path)

    def _begin_use(self, cursor: sqlite3.Cursor) -> Transactions:
        """Find or make the tables, and take over the entries of an earlier boot."""
        file, execute = self.file, cursor.execute
        execute("BEGIN IMMEDIATE")
        identity = file.identity()  # the shared memory is there from now on
        if identity is None:
            raise replaced(file.path)
        schema.create(execute, file.boot)
        boot, floor = schema.check_meta(execute(schema.READ_META).fetchone(), file.path)
        if boot != file.boot:
            if file.adopted:
                raise schema.two_boots(file.path)
            schema.adopt(execute, file.boot, file.clock.now())
        execute("COMMIT")
        file.adopted = True
        return Transactions(file, cursor, identity, floor)

    def close(self) -> None:
        """Disconnect. A transaction that is under way is rolled back."""
        db, self._db = self._db, None
        cursor, self._cursor = self._cursor, None
        self._transactions = None
        if cursor is not None:
            cursor.close()  # a statement that is still alive would keep the file open
        if db is not None:
            db.close()

    def unlock_after_interrupt(self) -> None:
        """For the only thread that uses it: Ctrl-C at the wrong moment leaves the lock taken for ever."""
        if self.lock.acquire(timeout=0.1):
            self.lock.release()
        else:
            self.lock = threading.Lock()

    # -- use ----------------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch in one transaction. Raises `Busy`, or what the store port says."""
        outcome = self._guarded(Transactions.apply, commands)
        self.work += len(commands)
        return outcome

    def sweep(self, keys: Sequence[bytes]) -> list[Notification]:
        """Let time take effect on keys, and delete those that are idle."""
        return self._guarded(Transactions.sweep, keys)

    def read(self, statement: str, *values: object) -> list[Row]:
        """The rows of a query outside of any transaction."""
        return self._guarded(Transactions.read, (statement, values))

    def retry[R](
        self,
        action: Callable[[], R],
        timeout: float | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> R:
        """Call one of the methods above with `lock` held, again and again while the file is busy.

        `timeout` is in seconds; if it is None or longer, the file's own applies. Raises
        `BackendUnavailable` when the file was busy until then, and `Busy` as soon as the result is not
        `wanted` any more. The pauses are short and random, so that each writer gets its turn.
        """
        end, pause = 0.0, FIRST_PAUSE
        while True:
            try:
                with self.lock:
                    return action()
            except Busy:
                if not wanted():
                    raise
            longest = self.file.timeout
            limit = longest if timeout is None else min(timeout, longest)
            end = end or time.monotonic() + limit
            if time.monotonic() >= end:
                raise locked_out(self.file.path, limit) from None
            time.sleep(pause * (0.5 + random.random()))  # noqa: S311
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _guarded[T, R](self, action: Callable[[Transactions, T], R], what: T) -> R:
        """Connect if necessary. After an error leave nothing half done, and begin anew next time."""
        try:
            if self._transactions is None:
                self.connect()
            assert self._transactions is not None
            return action(self._transactions, what)
        except sqlite3.Error as error:
            self._roll_back()
            if is_busy(error):
                raise Busy from None
            self.close()
            raise explain(error, self.file.path) from error
        except (DibsError, OSError, MemoryError):
            self._roll_back()
            self.close()
            raise
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Leave no transaction behind, and forget the books that it used."""
        if self._transactions is not None:
            self._transactions.forget()
        db = self._db
        if db is not None and db.in_transaction:
            try:
                db.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()  # which rolls back, too

    # -- forks --------------------------------------------------------------------------------------

    def close_after_fork(self, *, at_rest: bool) -> None:
        """In the child: drop the inherited connection. One that was not at rest is never closed."""
        db = self._db
        if at_rest and not (db is not None and db.in_transaction):
            if db is not None:
                db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        else:
            _torn.add(self.file.path)
            _leaked.append((db, self._cursor, self._transactions))
            self._db = self._cursor = None
        self.close()
        self.lock = threading.Lock()


# SQLite keeps, per process, a note of the locks it holds on a file. In a forked child that note is wrong,
# so inherited connections must go. Closing them is safe only while no transaction is under way, because
# rolling one back would write into the memory that the parent shares. Hence the locks taken before each
# fork. Closing takes none of the parent's locks away: they belong to the process that took them.

FORK_WAIT = 2.0
"""Seconds that a fork waits for the transactions of other threads to end."""

_connections: WeakSet[Connection] = WeakSet()
_held: list[Connection] = []
_torn: set[str] = set()
"""Files that this process must not open, because of the moment at which it was forked."""
_leaked: list[object] = []


def _before_fork() -> None:
    end = time.monotonic() + FORK_WAIT
    _held.extend(
        connection
        for connection in list(_connections)
        if connection.lock.acquire(timeout=max(end - time.monotonic(), 0))
    )


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    for connection in list(_connections):
        connection.close_after_fork(at_rest=connection in _held)
    _held.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
