"""Records in a SQLite file, which can be that of the leases."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dibs.errors import DibsError
from dibs.server.records.port import FORMAT, Records, unreadable
from dibs.server.records.sql import REVISION, SqlRecords, SqlRow, read_revision
from dibs.stores.sqlite import file
from dibs.stores.sqlite.errors import code_of, explain, is_busy, locked_out
from dibs.stores.sqlite.schema import PAGE_SIZE
from dibs.stores.sqlite.transactions import replaced

PAUSE = 0.005
"""Seconds between two tries while another connection has locked the file."""

NAMES = {"state": "dibs_service", "records": "dibs_records", "log": "dibs_log"}

TABLES = (
    """CREATE TABLE IF NOT EXISTS dibs_records (
        kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (kind, name)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dibs_log (
        number INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB NOT NULL)""",
    """CREATE TRIGGER IF NOT EXISTS dibs_log_is_true BEFORE UPDATE ON dibs_log
        BEGIN SELECT RAISE(ABORT, 'the log of dibs is only added to'); END""",
    """CREATE TABLE IF NOT EXISTS dibs_service (
        one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, revision INTEGER NOT NULL)""",
    f"INSERT OR IGNORE INTO dibs_service VALUES (1, {FORMAT}, 0)",  # noqa: S608
)


def sqlite_records(url: str) -> Records:
    """Records in the file of a URL. Raises `NotConfigured`."""
    return SqlRecords(SqliteDriver(url))


class SqliteDriver:
    """See `SqlDriver`. One connection in a thread of its own, so a locked file does not block the loop."""

    def __init__(self, url: str) -> None:
        self._file = file.StoreFile(url)
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._identity: file.Identity | None = None

    @property
    def place(self) -> str:
        return self._file.path

    async def open(self) -> None:
        await self._in_thread(lambda _: None)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            thread.shutdown()

    async def run(self, statement: str, *values: object) -> Sequence[SqlRow]:
        text = statement.format(**NAMES)
        return await self._in_thread(lambda db: db.execute(text, values).fetchall())

    async def change(self, statement: str, *values: object) -> bool:
        text = statement.format(**NAMES)

        def change(db: sqlite3.Connection) -> bool:
            with db:  # commits, or rolls back
                db.execute("BEGIN IMMEDIATE")
                if db.execute(text, values).rowcount != 1:
                    return False
                db.execute("UPDATE dibs_service SET revision = revision + 1")
            return True

        return await self._in_thread(change)

    async def append(self, value: bytes) -> int:
        text = "INSERT INTO dibs_log (value) VALUES (?)"
        return await self._in_thread(lambda db: int(db.execute(text, (value,)).lastrowid or 0))

    # -- in the thread ------------------------------------------------------------------------------

    async def _in_thread[R](self, action: Callable[[sqlite3.Connection], R]) -> R:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dibs-records")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, action)

    def _do[R](self, action: Callable[[sqlite3.Connection], R]) -> R:
        """Connect and do it, again and again while the file is locked."""
        end = time.monotonic() + self._file.timeout
        while True:
            try:
                return action(self._connected())
            except sqlite3.Error as error:
                if not is_busy(error):
                    self._disconnect()
                    if code_of(error) == sqlite3.SQLITE_ERROR:  # a table or a column is missing
                        raise unreadable(self.place, str(error)) from error
                    raise explain(error, self.place) from error
                if time.monotonic() >= end:
                    raise locked_out(self.place, self._file.timeout) from error
            except (DibsError, OSError):
                self._disconnect()
                raise
            time.sleep(PAUSE)

    def _connected(self) -> sqlite3.Connection:
        """The connection. A new one if another file is at the path now, such as a restored backup."""
        if self._db is not None and self._file.identity() == self._identity:
            return self._db
        self._disconnect()
        self._file.prepare()
        opened = Path(self.place).stat()
        db = sqlite3.connect(self.place, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            find_or_make_tables(db, self.place)
            self._identity = self._file.identity()
            if self._identity is None or self._identity[:2] != (opened.st_dev, opened.st_ino):
                raise replaced(self.place)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()


def find_or_make_tables(db: sqlite3.Connection, place: str) -> None:
    """Prepare a new connection. Raises `Corrupt`, `IncompatibleVersion`."""
    db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # an API key that was shown must not vanish
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'dibs_service'").fetchall():
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in TABLES:
                db.execute(statement)
    read_revision(db.execute(REVISION.format(**NAMES)).fetchall(), place)


# ---- files, before anything is opened -------------------------------------------------------------


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. Raises `NotConfigured` for any other URL."""
    return Path(file.StoreFile(url).path)


def open_to_others(urls: Iterable[str], secret: Path | None = None) -> Sequence[str]:
    """Reasons why other users of this machine can use these SQLite files, or the file of the secret."""
    paths = dict.fromkeys(str(sqlite_path(url)) for url in urls if url.startswith("sqlite:"))
    reasons = map(file.open_to_others, [*paths, *([str(secret)] if secret else ())])
    return list(filter(None, reasons))
