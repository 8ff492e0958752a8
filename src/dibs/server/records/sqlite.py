"""Records in a SQLite file, which may be that of the leases."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dibs.errors import DibsError
from dibs.server.records.bounds import (
    FORMAT,
    check_address,
    check_kind,
    check_page,
    check_value,
    entry_of,
    record_of,
    revision_of,
    unreadable,
)
from dibs.server.records.port import Conflict, Entry, Record
from dibs.stores.sqlite import file
from dibs.stores.sqlite.errors import code_of, explain, is_busy, locked_out
from dibs.stores.sqlite.schema import PAGE_SIZE

_TABLES = (
    """CREATE TABLE dibs_service (
        one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, revision INTEGER NOT NULL)""",
    """CREATE TABLE dibs_records (
        kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (kind, name)) WITHOUT ROWID""",
    """CREATE TABLE dibs_log (
        number INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB NOT NULL)""",
    """CREATE TRIGGER dibs_log_is_true BEFORE UPDATE ON dibs_log
        BEGIN SELECT RAISE(ABORT, 'the log of dibs is only added to'); END""",
)
_IS_THERE = "SELECT 1 FROM sqlite_master WHERE name = 'dibs_service'"
_FIRST = "INSERT INTO dibs_service VALUES (1, ?, 0)"
_REVISION = "SELECT format, revision FROM dibs_service"
_RISE = "UPDATE dibs_service SET revision = revision + 1"
_GET = "SELECT kind, name, value, version FROM dibs_records WHERE kind = ? AND name = ?"
_ALL = "SELECT kind, name, value, version FROM dibs_records WHERE kind = ? ORDER BY name"
_MAKE = "INSERT OR IGNORE INTO dibs_records (value, kind, name, version) VALUES (?, ?, ?, 1 + ?)"
_CHANGE = (
    "UPDATE dibs_records SET value = ?, version = version + 1"
    " WHERE kind = ? AND name = ? AND version = ?"
)
_REMOVE = "DELETE FROM dibs_records WHERE kind = ? AND name = ? AND version = ?"
_APPEND = "INSERT INTO dibs_log (value) VALUES (?)"
_OLDEST = "SELECT number, value FROM dibs_log ORDER BY number LIMIT ?"
_FORGET = "DELETE FROM dibs_log WHERE number = ?"
_LOG = "SELECT number, value FROM dibs_log WHERE number < ? ORDER BY number DESC LIMIT ?"


class SqliteRecords:
    """One connection, in a thread of its own: a busy file keeps nobody else waiting."""

    def __init__(self, url: str) -> None:
        self._address = file.StoreFile(url)
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] = (0, 0)

    # -- a life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._do(lambda _: None)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            thread.shutdown()

    async def worries(self) -> Sequence[str]:
        return ()

    async def _do[R](self, action: Callable[[sqlite3.Connection], R]) -> R:
        """Have the thread do it, connected. Raises our own errors."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dibs-records")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, action)

    def _guarded[R](self, action: Callable[[sqlite3.Connection], R]) -> R:
        try:
            return action(self._connected())
        except sqlite3.Error as error:
            if is_busy(error):
                raise locked_out(self._address.path, self._address.timeout) from error
            self._disconnect()
            if code_of(error) == sqlite3.SQLITE_ERROR:  # a table or a column is missing
                raise unreadable(self._address.path, str(error)) from error
            raise explain(error, self._address.path) from error
        except DibsError:
            self._disconnect()
            raise

    def _connected(self) -> sqlite3.Connection:
        """The connection; another one if somebody has put another file in its place."""
        if self._db is not None and self._identity_now() == self._identity:
            return self._db
        self._disconnect()
        path = self._address.path
        self._address.prepare()
        db = sqlite3.connect(
            path, timeout=self._address.timeout, isolation_level=None, check_same_thread=False
        )
        self._identity = self._identity_now()
        try:
            self._settle(db)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _settle(self, db: sqlite3.Connection) -> None:
        """Find or make the tables."""
        db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        self._begin_wal(db)
        db.execute("PRAGMA synchronous = FULL")  # a key that was shown must not vanish
        if db.execute(_IS_THERE).fetchone() is None:
            with _transaction(db):
                if db.execute(_IS_THERE).fetchone() is None:  # nobody else was faster
                    for statement in _TABLES:
                        db.execute(statement)
                    db.execute(_FIRST, (FORMAT,))
        revision_of(db.execute(_REVISION).fetchone(), self._address.path)

    def _begin_wal(self, db: sqlite3.Connection) -> None:
        """SQLite does not wait for a busy file here, so this does."""
        end = time.monotonic() + self._address.timeout
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= end:
                    raise
            time.sleep(0.005)

    def _identity_now(self) -> tuple[int, int]:
        try:
            found = Path(self._address.path).stat()
        except OSError:
            return (0, 0)
        return found.st_dev, found.st_ino

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # -- documents ----------------------------------------------------------------------------------

    async def revision(self) -> int:
        row = await self._do(lambda db: db.execute(_REVISION).fetchone())
        return revision_of(row, self._address.path)

    async def get(self, kind: str, name: str) -> Record | None:
        check_address(kind, name)
        row = await self._do(lambda db: db.execute(_GET, (kind, name)).fetchone())
        return None if row is None else record_of(row, self._address.path)

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        rows = await self._do(lambda db: db.execute(_ALL, (kind,)).fetchall())
        return [record_of(row, self._address.path) for row in rows]

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_address(kind, name)
        check_value(value)

        def write(db: sqlite3.Connection) -> bool:
            with _transaction(db):
                return _write(db, kind, name, value, expected)

        if not await self._do(write):
            raise Conflict(f"{kind} {name!r}")
        return Record(kind, name, value, expected + 1)

    async def delete(self, kind: str, name: str, expected: int) -> None:
        check_address(kind, name)

        def remove(db: sqlite3.Connection) -> bool:
            with _transaction(db):
                return _remove(db, kind, name, expected)

        if not await self._do(remove):
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._do(lambda db: int(db.execute(_APPEND, (value,)).lastrowid or 0))

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        check_page(before, limit)
        end = 1 << 62 if before is None else before
        rows = await self._do(lambda db: db.execute(_LOG, (end, limit)).fetchall())
        return [entry_of(row, self._address.path) for row in rows]

    async def oldest(self, limit: int) -> Sequence[Entry]:
        check_page(None, limit)
        rows = await self._do(lambda db: db.execute(_OLDEST, (limit,)).fetchall())
        return [entry_of(row, self._address.path) for row in rows]

    async def forget(self, lines: Sequence[Entry]) -> None:
        def forgotten(db: sqlite3.Connection) -> None:
            with _transaction(db):
                db.executemany(_FORGET, [(each.number,) for each in lines])

        await self._do(forgotten)


class _transaction:  # noqa: N801 -- read as a phrase
    """Everything in the block, or nothing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _write(db: sqlite3.Connection, kind: str, name: str, value: bytes, expected: int) -> bool:
    done = db.execute(_CHANGE if expected else _MAKE, (value, kind, name, expected))
    return _risen(db, done)


def _remove(db: sqlite3.Connection, kind: str, name: str, expected: int) -> bool:
    if not expected:
        return db.execute(_GET, (kind, name)).fetchone() is None
    return _risen(db, db.execute(_REMOVE, (kind, name, expected)))


def _risen(db: sqlite3.Connection, done: sqlite3.Cursor) -> bool:
    """Whether a row was written; then the revision is another."""
    if done.rowcount != 1:
        return False
    db.execute(_RISE)
    return True


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. Raises `NotConfigured` for one that is none."""
    return Path(file.StoreFile(url).path)


def open_to_others(urls: Iterable[str], secret: Path | None = None) -> Sequence[str]:
    """What is wrong with the permissions of these SQLite files, and of the file with the secret."""
    paths = dict.fromkeys(str(sqlite_path(url)) for url in urls if url.startswith("sqlite:"))
    told = map(file.open_to_others, [*paths, *([str(secret)] if secret else ())])
    return list(filter(None, told))


def missing_folders(urls: Iterable[str]) -> Sequence[str]:
    """Those that are yet to be made. Raises `NotConfigured` for a URL of SQLite's that is none."""
    paths = [sqlite_path(url) for url in urls if url.startswith("sqlite:")]
    folders = dict.fromkeys(path.parent for path in paths)
    return [str(folder) for folder in folders if not folder.exists()]
