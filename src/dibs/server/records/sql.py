"""Records in a SQL database: one set of statements for SQLite and PostgreSQL."""

from collections.abc import Sequence
from typing import Any, Protocol

from dibs.server.records.port import (
    Conflict,
    LogEntry,
    Record,
    check_format,
    check_value,
    unreadable,
)

type SqlRow = tuple[Any, ...]


class SqlDriver(Protocol):
    """A connection to a database. Its methods raise the errors of Dibs.

    A statement has `?` for each value, and `{state}`, `{records}` or `{log}` for each table.
    """

    @property
    def place(self) -> str:
        """The database, for messages."""

    async def open(self) -> None:
        """Connect, and make missing tables."""

    async def close(self) -> None:
        """Disconnect."""

    async def run(self, statement: str, *values: object) -> Sequence[SqlRow]:
        """Execute a statement that can be repeated; return its rows."""

    async def change(self, statement: str, *values: object) -> bool:
        """Change one row of the records and raise the revision, in one transaction.

        Returns False if the statement changed nothing. Then the revision stays.
        """

    async def append(self, value: bytes) -> int:
        """Add a line to the log; return its number."""


class SqlRecords:
    """See `Records`.

    A table has one row with the format and the revision. Every change of a record also writes that row, so
    changes become visible in the order of their revisions.
    """

    def __init__(self, driver: SqlDriver) -> None:
        self._driver = driver

    async def open(self) -> None:
        await self._driver.open()

    async def close(self) -> None:
        await self._driver.close()

    async def warnings(self) -> Sequence[str]:
        return ()

    # -- documents ----------------------------------------------------------------------------------

    async def revision(self) -> int:
        return read_revision(await self._driver.run(REVISION), self._driver.place)

    async def get(self, kind: str, name: str) -> Record | None:
        rows = await self._driver.run(GET, kind, name)
        return self._record(rows[0]) if rows else None

    async def all(self, kind: str) -> Sequence[Record]:
        return [self._record(row) for row in await self._driver.run(ALL, kind)]

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_value(value)
        if expected:
            done = await self._driver.change(REPLACE, value, kind, name, expected)
        else:
            done = await self._driver.change(CREATE, value, kind, name)
        if not done:
            raise Conflict(f"{kind} {name!r}")
        return Record(kind, name, value, expected + 1)

    async def delete(self, kind: str, name: str, expected: int) -> None:
        if not await self._driver.change(DELETE, kind, name, expected):
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._driver.append(value)

    async def log(self, before: int | None, limit: int) -> Sequence[LogEntry]:
        end = (1 << 62) if before is None else before
        return [self._entry(row) for row in await self._driver.run(LOG, end, limit)]

    async def oldest(self, limit: int) -> Sequence[LogEntry]:
        return [self._entry(row) for row in await self._driver.run(OLDEST, limit)]

    async def forget(self, lines: Sequence[LogEntry]) -> None:
        if lines:
            numbers = ", ".join("?" * len(lines))
            await self._driver.run(f"{FORGET} ({numbers})", *(each.number for each in lines))

    # -- rows ---------------------------------------------------------------------------------------

    def _record(self, row: SqlRow) -> Record:
        if tuple(map(type, row)) != (str, str, bytes, int):
            raise unreadable(self._driver.place, "a document of other types")
        return Record(*row)

    def _entry(self, row: SqlRow) -> LogEntry:
        if tuple(map(type, row)) != (int, bytes):
            raise unreadable(self._driver.place, "a line of other types")
        return LogEntry(*row)


def read_revision(rows: Sequence[SqlRow], place: str) -> int:
    """The revision in what `REVISION` returned. Raises `Corrupt` or `IncompatibleVersion`."""
    found, revision = rows[0] if rows else (None, None)
    check_format(found, place)
    if type(revision) is not int:
        raise unreadable(place, "no revision")
    return revision


REVISION = "SELECT format, revision FROM {state}"

GET = "SELECT kind, name, value, version FROM {records} WHERE kind = ? AND name = ?"

ALL = "SELECT kind, name, value, version FROM {records} WHERE kind = ? ORDER BY name"

CREATE = """INSERT INTO {records} (value, kind, name, version) VALUES (?, ?, ?, 1)
    ON CONFLICT DO NOTHING"""

REPLACE = """UPDATE {records} SET value = ?, version = version + 1
    WHERE kind = ? AND name = ? AND version = ?"""

DELETE = "DELETE FROM {records} WHERE kind = ? AND name = ? AND version = ?"

LOG = "SELECT number, value FROM {log} WHERE number < ? ORDER BY number DESC LIMIT ?"

OLDEST = "SELECT number, value FROM {log} ORDER BY number LIMIT ?"

FORGET = "DELETE FROM {log} WHERE number IN"
