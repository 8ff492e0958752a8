"""One connection to the file: how it is made, guarded and ended.

Nothing here waits: where somebody else is writing, `Busy` is raised and nothing was done. SQLite's own
waiting isn't used, as it sleeps for up to a quarter of a second while the file is long free again.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from dibs.core.book import Entry
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Wakeup
from dibs.stores.sqlite import file, schema
from dibs.stores.sqlite.schema import Row
from dibs.stores.sqlite.site import Site
from dibs.stores.sqlite.transactions import Outcome, Transactions, replaced
from dibs.stores.sqlite.trouble import Busy, explain, is_busy

_leaked: list[object] = []


class Connection:
    """A connection to the file. Whoever uses it holds `lock`, so that a fork finds it at rest."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.lock = threading.Lock()
        self.work = 0
        """Commands applied since the last upkeep."""
        """What datagrams of this file's users are signed with."""
        self._db: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._transactions: Transactions | None = None
        watch_forks(self)

    @property
    def ready(self) -> bool:
        """Connected, so that a batch can be applied at once."""
        return self._db is not None

    # -- a life -------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the file, making what is missing. Raises `Busy` while somebody else makes it."""
        if self._db is not None:
            return
        refuse_if_torn(self.site)
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
        self._transactions = transactions = self._settle(cursor)
        if transactions.identity[:2] != (opened.st_dev, opened.st_ino):
            raise replaced(self.site)

    def _settle(self, cursor: sqlite3.Cursor) -> Transactions:
        """Find or make the tables, and see to it that their times are of our boot."""
        site, execute = self.site, cursor.execute
        execute("BEGIN IMMEDIATE")
        identity = site.identity()  # the shared memory is there from now on
        if identity is None:
            raise replaced(site)
        schema.create(execute, site.boot)
        boot, floor = schema.check_meta(execute(schema.READ_META).fetchone(), site.path)
        if boot != site.boot:
            if site.settled:
                raise schema.two_boots(site.path)
            schema.adopt(execute, site.boot, site.clock.now())
        execute("COMMIT")
        site.settled = True
        return Transactions(site, cursor, identity, floor)

    def close(self) -> None:
        """Disconnect; a transaction that was under way is rolled back."""
        db, self._db = self._db, None
        cursor, self._cursor = self._cursor, None
        self._transactions = None
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
        _leaked.append((self._db, self._cursor, self._transactions))
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
        outcome = self._guarded(Transactions.apply, commands)
        self.work += len(commands)
        return outcome

    def sweep(self, keys: Sequence[bytes]) -> list[Wakeup]:
        """Settle keys, and throw out those that are idle; tokens still rise, as new keys begin above."""
        return self._guarded(Transactions.sweep, keys)

    def read(self, statement: str, *values: object) -> list[Row]:
        """The rows of a query outside of any transaction."""
        return self._guarded(lambda _, query: self._read(query), (statement, *values))

    def peek(self, key: bytes, entry_id: str) -> tuple[Entry | None, str | None]:
        """What an id has, and the id of the first place in the queue."""
        return self._guarded(Transactions.peek, (key, entry_id))

    def _guarded[T, R](self, action: Callable[[Transactions, T], R], what: T) -> R:
        """Connect if need be; after an error, leave nothing half done and begin afresh next time."""
        try:
            if self._transactions is None:
                self.connect()
            assert self._transactions is not None
            return action(self._transactions, what)
        except sqlite3.Error as error:
            self._give_up()
            if is_busy(error):
                raise Busy from None
            self.close()
            raise explain(error, self.site.path) from error
        except (DibsError, OSError, MemoryError):
            self._give_up()
            self.close()
            raise
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Leave no transaction behind, and remember nothing of it."""
        if self._transactions is not None:
            self._transactions.forget()
        db = self._db
        if db is not None and db.in_transaction:
            try:
                db.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()  # which rolls back, too

    def _read(self, query: tuple[Any, ...]) -> list[Row]:
        assert self._cursor is not None
        return self._cursor.execute(query[0], query[1:]).fetchall()


FORK_PATIENCE = 2.0
"""How long a fork waits for the transactions of other threads to end, in seconds."""


class Forkable(Protocol):
    """A connection, as far as a fork is concerned: it is found at rest, and the child begins with none.

    SQLite keeps, per process, a note of which locks it holds on a file. In a child that note is a lie, so the
    inherited connections have to go. Closing them is safe only while no transaction is under way, as rolling
    one back would write into the memory that the parent shares: hence the locks taken before each fork. It
    takes none of the parent's locks away, since locks belong to the process that took them.
    """

    site: Site
    lock: threading.Lock

    @property
    def at_rest(self) -> bool:
        """No transaction is under way."""

    def close_in_child(self) -> None:
        """Let go of what was inherited."""

    def leak(self) -> None:
        """Forget what was inherited, and see to it that nothing ever closes it."""


_connections: WeakSet[Forkable] = WeakSet()
_held: list[Forkable] = []
_torn: set[str] = set()


def watch_forks(connection: Forkable) -> None:
    """Have a connection at rest during forks, as long as it lives."""
    _connections.add(connection)


def refuse_if_torn(site: Site) -> None:
    """Raise `BackendUnavailable` where this process can't open a file, because of how it was forked."""
    if site.path in _torn:
        raise BackendUnavailable(
            f"this process was forked amid a transaction on {site.path}, and SQLite can't be used "
            "safely on it here: start it by spawn, or exec a program after the fork"
        )


def _before() -> None:
    end = time.monotonic() + FORK_PATIENCE
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
        if connection in _held and connection.at_rest:
            connection.close_in_child()
        else:
            connection.leak()
            _torn.add(connection.site.path)
        connection.lock = threading.Lock()
    _held.clear()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
