"""Records in this process, for tests: `memory://`, or `memory://name` to share them by name."""

import sqlite3
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from dibs.server.records.port import Records
from dibs.server.records.sql import SqlRecords
from dibs.server.records.sqlite import SqliteDriver, find_or_make_tables


class _Database:
    """A SQLite database in memory, which all records of one URL share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        find_or_make_tables(self.db, "memory://")


_database_by_url: WeakValueDictionary[str, _Database] = WeakValueDictionary()
_making = threading.Lock()


def memory_records(url: str) -> Records:
    """Records that end with the last object of their URL."""
    return SqlRecords(MemoryDriver(url))


class MemoryDriver(SqliteDriver):
    """See `SqlDriver`. Nothing blocks long enough here for a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _making:
            self._database = _database_by_url.setdefault(url, _Database())

    @property
    def place(self) -> str:
        return self._url

    async def close(self) -> None:
        pass

    async def _in_thread[R](self, action: Callable[[sqlite3.Connection], R]) -> R:
        with self._database.lock:
            return action(self._database.db)
